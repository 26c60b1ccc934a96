#include "models/gpt/text_batch.h"

#include <algorithm>
#include <utility>

#include "core/thread_pool.h"
#include "kernels/linear/linear.h"
#include "nn/kv_cache.h"

namespace lockstep::models {

int64_t SlideOf(int64_t slide, int64_t block_size) {
  LS_CHECK(slide >= 0 && slide <= block_size,
           "slide must be at least 0 (0: half of the context) and at most the model's block_size ",
           block_size, ", got ", slide);
  return slide > 0 ? slide : std::max<int64_t>(1, block_size / 2);
}

int64_t ContextStart(int64_t position, int64_t block_size, int64_t slide) {
  LS_CHECK(block_size > 0 && slide > 0 && slide <= block_size, "a context of ", block_size,
           " tokens cannot slide by ", slide);
  const int64_t beyond = position - block_size;
  return beyond <= 0 ? 0 : (beyond + slide - 1) / slide * slide;
}

TextBatch::TextBatch(Gpt& model, int64_t vocab_limit, const TextBatchOptions& options,
                     ContextCache* kept)
    : model_(model),
      vocab_limit_(vocab_limit),
      device_(model.Parameters().front()->device()),
      block_(model.config().block_size),
      slide_(SlideOf(options.slide, block_)),
      slots_(options.slots) {
  const int64_t vocabulary = model_.config().vocab_size;
  LS_CHECK(vocab_limit_ > 0 && vocab_limit_ <= vocabulary,
           "vocab_limit must be positive and at most the model's vocabulary of ", vocabulary,
           ", got ", vocab_limit_);
  LS_CHECK(slots_ > 0, "a batch has at least one text at once, got ", slots_);
  if (options.kv_cache) {
    const int64_t capacity = options.capacity > 0 ? options.capacity : block_;
    kept_ = kept;
    cache_ = kept_ != nullptr ? &kept_->Reserve(capacity, block_)
                              : &own_cache_.emplace(slots_, capacity);
  }
  Clear();
}

void TextBatch::Check(const TextRequest& request) const {
  const int64_t vocabulary = model_.config().vocab_size;
  LS_CHECK(request.tokens >= 0, "tokens must be at least 0, got ", request.tokens);
  LS_CHECK(!request.prompt.empty(), "a prompt needs at least one token");
  LS_CHECK(request.sample >= 0, "the number of a sample must be at least 0, got ", request.sample);
  for (int32_t id : request.prompt) {
    LS_CHECK(id >= 0 && id < vocabulary, "token ", id,
             " of the prompt is not in the model's vocabulary of ", vocabulary);
  }
  LS_CHECK(!request.on_prompt_token || (cache_ != nullptr && std::ssize(request.prompt) <= block_),
           "a prompt is only scored with a cache, and if it fits the model's context of ", block_,
           " tokens, got ", request.prompt.size());
  const TokenSampler checks_its_options(request.sampling);
}

int64_t TextBatch::Start(TextRequest request) {
  LS_CHECK(!full(), "a batch of ", slots_, " texts is full");
  Check(request);
  if (request.tokens == 0 && !request.on_prompt_token) return 0;
  const NoGrad no_grad;
  TokenSampler sampler(request.sampling);
  Active a{.request = std::move(request), .sampler = std::move(sampler)};
  a.text = a.request.prompt;
  a.left = a.request.tokens;
  a.slot = free_.back();
  if (a.request.sampling.repetition_penalty != 1) {
    a.seen.assign(static_cast<size_t>(model_.config().vocab_size), 0);
    for (int32_t id : a.text) a.seen[static_cast<size_t>(id)] = 1;
  }
  int64_t computed = 0;
  const Tensor logits = Context(a, &computed);
  Active* const started = &a;
  if (a.left > 0) Draw({&started, 1}, logits);
  if (a.left > 0) {
    free_.pop_back();
    active_.push_back(std::move(a));
  }
  return computed;
}

void TextBatch::Advance() {
  const NoGrad no_grad;
  // One by one where the context moves or there is no cache, else in batches: of up to kFewRows,
  // whose rows do not depend on each other.
  std::vector<Active*> batch;
  const auto flush = [&] {
    if (!batch.empty()) Decode(batch);
    batch.clear();
  };
  for (Active& a : active_) {
    if (cache_ == nullptr || Begin(a) != a.start) {
      Active* const moved = &a;
      Draw({&moved, 1}, Context(a));
      continue;
    }
    batch.push_back(&a);
    if (static_cast<int64_t>(batch.size()) == kFewRows) flush();
  }
  flush();
  std::erase_if(active_, [&](const Active& a) {
    if (a.left == 0) free_.push_back(a.slot);
    return a.left == 0;
  });
}

void TextBatch::Clear() {
  active_.clear();
  free_.clear();
  for (int64_t slot = slots_ - 1; slot >= 0; --slot) free_.push_back(slot);
}

int64_t TextBatch::Begin(const Active& a) const {
  return ContextStart(std::ssize(a.text), block_, slide_);
}

// The logits after the whole context of a text. Adds to `computed` the tokens for which the model
// ran.
Tensor TextBatch::Context(Active& a, int64_t* computed) {
  a.start = Begin(a);
  auto tokens = std::span<const int32_t>(a.text).subspan(static_cast<size_t>(a.start));
  const bool scores = a.request.on_prompt_token && a.text.size() == a.request.prompt.size();
  if (kept_ != nullptr) {
    LS_CHECK(!scores, "the prompt of a context that is kept is not scored");
    tokens = tokens.subspan(static_cast<size_t>(kept_->KeepPrefixOf(tokens)));
  } else if (cache_ != nullptr) {
    cache_->Clear(a.slot);
  }
  if (computed != nullptr) *computed += std::ssize(tokens);
  if (scores) return ScoredPrompt(a);
  if (cache_ != nullptr) return Forward({a.slot}, tokens);
  const int64_t n = std::ssize(tokens);
  return model_(Tensor::FromSpan(tokens, {1, n}, device_)).Slice(1, n - 1, n);
}

// Tells the logits of the prompt's tokens, and returns those after it, with the bits of Forward.
Tensor TextBatch::ScoredPrompt(Active& a) {
  const std::span<const int32_t> tokens(a.text);
  const int64_t n = std::ssize(tokens);
  const auto stream = [&] {
    const nn::KvCacheScope scope(*cache_, {a.slot}, n, device_);
    nn::ResidualStream all = model_.Stream(Tensor::FromSpan(tokens, {1, n}, device_));
    scope.Commit();
    return all;
  }();
  const auto head = [&](int64_t begin, int64_t end) {
    nn::ResidualStream part = stream;
    for (Tensor* t : {&part.x, &part.open.value}) {
      if (t->defined()) *t = t->Slice(1, begin, end);
    }
    return model_.head()(std::move(part), Tensor());
  };
  const int64_t chunk = std::max<int64_t>(1, (int64_t{1} << 24) / model_.config().vocab_size);
  for (int64_t begin = 0; begin < n - 1; begin += chunk) {
    const int64_t end = std::min(n - 1, begin + chunk);
    const Tensor logits = head(begin, end);
    for (int64_t i = begin; i < end; ++i) {
      const std::vector<float> row = Drawable(logits.Slice(1, i - begin, i - begin + 1));
      a.request.on_prompt_token(tokens[static_cast<size_t>(i + 1)], row);
    }
  }
  return head(n - 1, n);
}

// Draws the next token of each text.
void TextBatch::Decode(const std::vector<Active*>& batch) {
  std::vector<int64_t> slots;
  std::vector<int32_t> last;
  for (const Active* a : batch) {
    slots.push_back(a->slot);
    last.push_back(a->text.back());
  }
  Draw(batch, Forward(slots, last));
}

// The logits after the tokens that follow what the slots have, equally many for each.
Tensor TextBatch::Forward(const std::vector<int64_t>& slots, std::span<const int32_t> tokens) {
  const int64_t rows = std::ssize(slots), cols = std::ssize(tokens) / rows;
  const nn::KvCacheScope scope(*cache_, slots, cols, device_);
  const Tensor logits = model_(Tensor::FromSpan(tokens, {rows, cols}, device_));
  scope.Commit();
  if (kept_ != nullptr) kept_->Append(tokens);
  return logits;
}

// The logits [..., V] of ids that may be drawn.
std::vector<float> TextBatch::Drawable(const Tensor& logits) const {
  return logits.Slice(2, 0, vocab_limit_).To(DType::kF32).Contiguous().ToVector<float>();
}

// logits: [texts, 1, V]
void TextBatch::Draw(std::span<Active* const> texts, const Tensor& logits) {
  const std::vector<float> all = Drawable(logits);
  const auto limit = static_cast<size_t>(vocab_limit_);
  const auto row = [&](size_t i) { return std::span(all).subspan(i * limit, limit); };
  std::vector<int32_t> ids(texts.size());
  ParallelForEach(std::ssize(texts), 1, [&](int64_t at) {
    const auto i = static_cast<size_t>(at);
    Active& a = *texts[i];
    const double u = SamplingUniform(a.request.seed, a.request.sample, std::ssize(a.text));
    ids[i] = a.sampler.Draw(row(i), u, a.seen);
  });
  for (size_t i = 0; i < texts.size(); ++i) {
    Active& a = *texts[i];
    a.text.push_back(ids[i]);
    if (!a.seen.empty()) a.seen[static_cast<size_t>(ids[i])] = 1;
    --a.left;
    if (a.request.on_token && !a.request.on_token(ids[i], row(i))) a.left = 0;
  }
}

}  // namespace lockstep::models
