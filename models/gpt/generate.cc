#include "models/gpt/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "kernels/linear/linear.h"
#include "models/gpt/token_sampler.h"
#include "nn/kv_cache.h"

namespace lockstep::models {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A sequence being generated.
struct Active {
  int64_t sequence = 0;  // its number
  int64_t sample = 0;
  int64_t slot = 0;           // its place in the cache
  int64_t start = -1;         // where the context in the cache starts; -1: the place is empty
  std::vector<int32_t> text;  // prompt and what was generated
  std::vector<uint8_t> seen;  // per id, for the repetition penalty
  int64_t left = 0;           // tokens to generate
  int32_t next = 0;           // the token that was drawn last
};

class Generator {
 public:
  Generator(Gpt& model, std::span<const GenerateSequence> sequences, int64_t vocab_limit,
            const GenerateOptions& options, const std::function<bool(int64_t, int32_t)>& on_token,
            ContextCache* kept)
      : model_(model),
        sequences_(sequences),
        vocab_limit_(vocab_limit),
        options_(options),
        on_token_(on_token),
        device_(model.Parameters().front()->device()),
        block_(model.config().block_size),
        slide_(SlideOf(options, block_)),
        sampler_({.repetition_penalty = options.repetition_penalty,
                  .temperature = options.temperature,
                  .top_k = options.top_k,
                  .top_p = options.top_p}),
        results_(sequences.size()) {
    Check();
    slots_ = std::min<int64_t>(options.batch_size, static_cast<int64_t>(sequences.size()));
    int64_t longest = 0;
    for (const GenerateSequence& s : sequences) {
      longest = std::max(longest, static_cast<int64_t>(s.prompt.size()));
    }
    // The last token is drawn, never computed.
    const int64_t capacity = std::min(block_, longest + std::max<int64_t>(options.tokens - 1, 0));
    if (!options.kv_cache || slots_ == 0) return;
    kept_ = kept;
    cache_ = kept_ != nullptr ? &kept_->Reserve(capacity, block_)
                              : &own_cache_.emplace(slots_, capacity);
  }

  std::vector<std::vector<int32_t>> Run() {
    const NoGrad no_grad;
    if (options_.tokens == 0) return results_;
    for (int64_t slot = slots_ - 1; slot >= 0; --slot) free_.push_back(slot);
    while (!active_.empty() || started_ < static_cast<int64_t>(sequences_.size())) {
      while (!free_.empty() && started_ < static_cast<int64_t>(sequences_.size())) Start();
      const Clock::time_point start = Clock::now();
      Advance();
      stats_.seconds += SecondsSince(start);
    }
    return std::move(results_);
  }

  const GenerateStats& stats() const { return stats_; }

 private:
  void Check() const {
    LS_CHECK(options_.tokens >= 0, "tokens must be at least 0, got ", options_.tokens);
    LS_CHECK(options_.batch_size > 0, "batch_size must be at least 1, got ", options_.batch_size);
    const int64_t vocabulary = model_.config().vocab_size;
    LS_CHECK(vocab_limit_ > 0 && vocab_limit_ <= vocabulary,
             "vocab_limit must be positive and at most the model's vocabulary of ", vocabulary,
             ", got ", vocab_limit_);
    for (const GenerateSequence& s : sequences_) {
      LS_CHECK(!s.prompt.empty(), "a prompt needs at least one token");
      LS_CHECK(s.sample >= 0, "the number of a sample must be at least 0, got ", s.sample);
      for (int32_t id : s.prompt) {
        LS_CHECK(id >= 0 && id < vocabulary, "token ", id,
                 " of the prompt is not in the model's vocabulary of ", vocabulary);
      }
    }
  }

  // Computes the prompt of the next sequence and draws its first token.
  void Start() {
    const Clock::time_point start = Clock::now();
    const GenerateSequence& s = sequences_[static_cast<size_t>(started_)];
    Active a;
    a.sequence = started_++;
    a.sample = s.sample;
    a.text = s.prompt;
    a.left = options_.tokens;
    if (options_.repetition_penalty != 1) {
      a.seen.assign(static_cast<size_t>(model_.config().vocab_size), 0);
      for (int32_t id : a.text) a.seen[static_cast<size_t>(id)] = 1;
    }
    a.slot = free_.back();
    free_.pop_back();
    Draw(a, Context(a, &stats_.prompt_tokens));
    stats_.prompt_seconds += SecondsSince(start);
    if (Accept(a)) {
      active_.push_back(std::move(a));
    } else {
      Finish(a);
    }
  }

  // Generates one token of each active sequence.
  void Advance() {
    // One by one where the context moves or there is no cache, else in batches: of up to kFewRows,
    // whose rows do not depend on each other.
    std::vector<Active*> batch;
    const auto flush = [&] {
      if (!batch.empty()) Decode(batch);
      batch.clear();
    };
    for (Active& a : active_) {
      if (cache_ == nullptr || Begin(a) != a.start) {
        Draw(a, Context(a));
        continue;
      }
      batch.push_back(&a);
      if (static_cast<int64_t>(batch.size()) == kFewRows) flush();
    }
    flush();
    stats_.tokens += static_cast<int64_t>(active_.size());
    for (Active& a : active_) {
      if (!Accept(a)) {
        Finish(a);
        a.slot = -1;
      }
    }
    std::erase_if(active_, [](const Active& a) { return a.slot < 0; });
  }

  int64_t Begin(const Active& a) const {
    return ContextStart(static_cast<int64_t>(a.text.size()), block_, slide_);
  }

  // The logits after the whole context of a sequence. Adds to `computed` the tokens for which the
  // model ran.
  Tensor Context(Active& a, int64_t* computed = nullptr) {
    a.start = Begin(a);
    auto tokens = std::span<const int32_t>(a.text).subspan(static_cast<size_t>(a.start));
    if (kept_ != nullptr) {
      tokens = tokens.subspan(static_cast<size_t>(kept_->KeepPrefixOf(tokens)));
    } else if (cache_ != nullptr) {
      cache_->Clear(a.slot);
    }
    if (computed != nullptr) *computed += std::ssize(tokens);
    if (cache_ != nullptr) return Forward({a.slot}, tokens);
    const int64_t n = std::ssize(tokens);
    return model_(Tensor::FromSpan(tokens, {1, n}, device_)).Slice(1, n - 1, n);
  }

  // Draws the next token of each sequence.
  void Decode(const std::vector<Active*>& batch) {
    std::vector<int64_t> slots;
    std::vector<int32_t> last;
    for (const Active* a : batch) {
      slots.push_back(a->slot);
      last.push_back(a->text.back());
    }
    const Tensor logits = Forward(slots, last);
    for (int64_t i = 0; i < std::ssize(batch); ++i) {
      Draw(*batch[static_cast<size_t>(i)], logits.Slice(0, i, i + 1));
    }
  }

  // The logits after the tokens that follow what the slots have, equally many for each.
  Tensor Forward(const std::vector<int64_t>& slots, std::span<const int32_t> tokens) {
    const int64_t rows = std::ssize(slots), cols = std::ssize(tokens) / rows;
    const nn::KvCacheScope scope(*cache_, slots, cols, device_);
    const Tensor logits = model_(Tensor::FromSpan(tokens, {rows, cols}, device_));
    scope.Commit();
    if (kept_ != nullptr) kept_->Append(tokens);
    return logits;
  }

  // logits: [1, 1, V]
  void Draw(Active& a, const Tensor& logits) {
    const Tensor row = logits.Slice(2, 0, vocab_limit_).To(DType::kF32).To(kCpu).Contiguous();
    const double u = SamplingUniform(options_.seed, a.sample, static_cast<int64_t>(a.text.size()));
    const std::span<const float> values(row.data<float>(), static_cast<size_t>(vocab_limit_));
    a.next = sampler_.Draw(values, u, a.seen);
  }

  // Appends the token that was drawn; false if it was the last.
  bool Accept(Active& a) {
    a.text.push_back(a.next);
    if (!a.seen.empty()) a.seen[static_cast<size_t>(a.next)] = 1;
    const bool go_on = !on_token_ || on_token_(a.sequence, a.next);
    return --a.left > 0 && go_on;
  }

  void Finish(const Active& a) {
    const size_t prompt = sequences_[static_cast<size_t>(a.sequence)].prompt.size();
    results_[static_cast<size_t>(a.sequence)].assign(a.text.begin() + prompt, a.text.end());
    free_.push_back(a.slot);
  }

  Gpt& model_;
  std::span<const GenerateSequence> sequences_;
  int64_t vocab_limit_;
  const GenerateOptions& options_;
  const std::function<bool(int64_t, int32_t)>& on_token_;
  Device device_;
  int64_t block_, slide_, slots_ = 0;
  TokenSampler sampler_;
  std::optional<nn::KvCache> own_cache_;
  nn::KvCache* cache_ = nullptr;  // null: each token recomputes its context
  ContextCache* kept_ = nullptr;  // whose cache that is; null: it is our own
  int64_t started_ = 0;           // how many sequences have started
  std::vector<int64_t> free_;     // slots
  std::vector<Active> active_;    // in the order in which they started
  std::vector<std::vector<int32_t>> results_;
  GenerateStats stats_;
};

}  // namespace

int64_t SlideOf(const GenerateOptions& options, int64_t block_size) {
  LS_CHECK(options.slide >= 0 && options.slide <= block_size,
           "slide must be at least 0 (0: half of the context) and at most the model's block_size ",
           block_size, ", got ", options.slide);
  return options.slide > 0 ? options.slide : std::max<int64_t>(1, block_size / 2);
}

int64_t ContextStart(int64_t position, int64_t block_size, int64_t slide) {
  LS_CHECK(block_size > 0 && slide > 0 && slide <= block_size, "a context of ", block_size,
           " tokens cannot slide by ", slide);
  const int64_t beyond = position - block_size;
  return beyond <= 0 ? 0 : (beyond + slide - 1) / slide * slide;
}

GenerateStats& GenerateStats::operator+=(const GenerateStats& other) {
  prompt_tokens += other.prompt_tokens;
  prompt_seconds += other.prompt_seconds;
  tokens += other.tokens;
  seconds += other.seconds;
  return *this;
}

std::vector<std::vector<int32_t>> GenerateBatch(
    Gpt& model, std::span<const GenerateSequence> sequences, int64_t vocab_limit,
    const GenerateOptions& options, const std::function<bool(int64_t, int32_t)>& on_token,
    GenerateStats* stats) {
  Generator generator(model, sequences, vocab_limit, options, on_token, nullptr);
  std::vector<std::vector<int32_t>> results = generator.Run();
  if (stats != nullptr) *stats = generator.stats();
  return results;
}

std::vector<int32_t> Generate(Gpt& model, std::span<const int32_t> prompt, int64_t vocab_limit,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token, ContextCache* kept,
                              GenerateStats* stats) {
  const GenerateSequence sequence{.prompt = {prompt.begin(), prompt.end()}};
  std::function<bool(int64_t, int32_t)> forward;
  if (on_token) forward = [&](int64_t, int32_t id) { return on_token(id); };
  Generator generator(model, std::span(&sequence, 1), vocab_limit, options, forward, kept);
  std::vector<int32_t> tokens = std::move(generator.Run()[0]);
  if (stats != nullptr) *stats += generator.stats();
  return tokens;
}

}  // namespace lockstep::models
