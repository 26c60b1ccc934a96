// Text generation: properties that hold between different ways to compute the same.
#include "models/gpt/generate.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "core/allocator.h"
#include "core/thread_pool.h"
#include "kernels/linear/linear.h"
#include "models/gpt/token_sampler.h"
#include "nn/kv_cache.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

constexpr int64_t kVocabulary = 61;

// Models whose logits are spread like trained ones: with tiny initial weights every distribution
// would be flat, and every test of tokens would only test the random numbers.
void Spread(Gpt& model, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1);
  for (const auto& p : model.Parameters()) {
    const Tensor value = p->value().Detach();
    const bool matrix = value.ndim() >= 2;  // or one for each expert
    const double std = matrix ? 1.2 / std::sqrt(static_cast<double>(value.dim(-1))) : 0.3;
    std::vector<double> values(static_cast<size_t>(value.numel()));
    for (double& x : values) x = (matrix ? 0 : 1) + std * normal(random);
    value.CopyFrom(Tensor::FromVector(values, value.shape()));
  }
}

struct Family {
  const char* name;
  GptConfig config;
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

// A configuration of each family.
std::vector<Family> Families() {
  const GptConfig base{
      .vocab_size = kVocabulary, .block_size = 24, .n_layer = 3, .n_head = 4, .n_embd = 32};
  GptConfig plain = base;
  plain.bias = false;
  plain.tie_embeddings = false;
  GptConfig llama = plain;
  llama.n_kv_head = 2;
  llama.norm = NormKind::kRmsNorm;
  llama.activation = nn::MlpActivation::kSwiGlu;
  llama.position = Position::kRope;
  GptConfig mixtral = llama;
  mixtral.n_inner = 40;
  mixtral.mixture = {.n_expert = 4, .n_expert_used = 2};
  GptConfig qwen3 = llama;
  qwen3.head_dim = 10;
  qwen3.qk_norm = nn::QkNorm::kHead;
  GptConfig gemma = qwen3;  // with windows shorter than the context
  gemma.window = 5;
  gemma.window_pattern = 2;
  gemma.rope_local_theta = 50;
  gemma.attn_scale = 0.4;
  gemma.attn_softcap = 0.5;
  gemma.logit_softcap = 20;
  gemma.norm_offset = 1;
  gemma.norm_place = nn::NormPlace::kSandwich;
  gemma.activation = nn::MlpActivation::kGegluTanh;
  gemma.embed_scale = 4;
  GptConfig olmo = llama;
  olmo.qk_norm = nn::QkNorm::kFull;
  olmo.norm_place = nn::NormPlace::kPost;
  GptConfig modern = qwen3;
  modern.norm_weight = false;
  modern.activation = nn::MlpActivation::kRelu2;
  modern.embed_norm = true;
  modern.embed_mix = true;
  modern.value_embed = true;
  return {{"modern", modern},        {"gpt2", base},   {"gemma", gemma},     {"olmo", olmo},
          {"no_bias_untied", plain}, {"llama", llama}, {"mixtral", mixtral}, {"qwen3", qwen3}};
}

class GenerateTest : public testing::TestWithParam<Family> {
 protected:
  GenerateTest() : model_(GetParam().config) {
    model_.Materialize(kCpu, 3);
    Spread(model_, 11);
  }

  std::vector<std::vector<int32_t>> Batch(const std::vector<GenerateSequence>& sequences,
                                          const GenerateOptions& options) {
    return GenerateBatch(model_, sequences, kVocabulary, options);
  }

  static std::vector<GenerateSequence> Prompts() {
    std::vector<GenerateSequence> out;
    std::mt19937 random(5);
    // Shorter than, equal to and longer than the context of 24, some of the same length.
    for (size_t length : {1u, 2u, 5u, 5u, 17u, 23u, 24u, 25u, 60u, 1u}) {
      GenerateSequence s;
      for (size_t i = 0; i < length; ++i) s.prompt.push_back(static_cast<int32_t>(random() % 61));
      out.push_back(s);
    }
    out[3].prompt = out[2].prompt;  // the same prompt again, another sample
    out[3].sample = 1;
    return out;
  }

  Gpt model_;
};

INSTANTIATE_TEST_SUITE_P(Families, GenerateTest, testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param.name; });

// Longer than the context of 24.
constexpr int64_t kTokens = test::kSanitized ? 27 : 50;
const GenerateOptions kGreedy{.tokens = kTokens, .temperature = 0};
const GenerateOptions kSampled{.tokens = kTokens, .temperature = 1, .top_k = 40, .top_p = 0.95};
const GenerateOptions kPenalised{.tokens = kTokens, .temperature = 0.9, .repetition_penalty = 1.3};

// The tokens are the same with and without the cache, also beyond the context. In f64, where the
// order of sums does not change which token is drawn.
TEST_P(GenerateTest, TheCacheChangesNoToken) {
  Gpt model(GetParam().config);
  model.Materialize(kCpu, 3, DType::kF64);
  Spread(model, 11);
  for (GenerateOptions options : {kGreedy, kSampled, kPenalised}) {
    for (int64_t slide :
         test::kSanitized ? std::vector<int64_t>{7} : std::vector<int64_t>{0, 1, 7, 24}) {
      options.slide = slide;
      GenerateOptions without = options;
      without.kv_cache = false;
      const auto got = GenerateBatch(model, Prompts(), kVocabulary, options);
      EXPECT_EQ(got, GenerateBatch(model, Prompts(), kVocabulary, without)) << "slide " << slide;
      for (const auto& tokens : got) EXPECT_EQ(tokens.size(), static_cast<size_t>(kTokens));
    }
  }
}

// In f32 tokens may differ where a draw is within rounding of the border between two tokens, or a
// token within rounding of being kept by top_p. `got` and `want` continue the sequence's prompt and
// differ; returns whether that is why: whether logits within rounding give either.
bool DifferAtATie(Gpt& model, const GenerateSequence& sequence, const std::vector<int32_t>& got,
                  const std::vector<int32_t>& want, const GenerateOptions& options) {
  const auto [g, w] = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
  if (g == got.end() || w == want.end()) return false;
  std::vector<int32_t> text = sequence.prompt;
  text.insert(text.end(), want.begin(), w);
  const int64_t position = static_cast<int64_t>(text.size()), block = model.config().block_size;
  const int64_t slide = options.slide > 0 ? options.slide : block / 2;
  text.erase(text.begin(), text.begin() + ContextStart(position, block, slide));
  const NoGrad no_grad;
  const auto length = static_cast<int64_t>(text.size());
  const std::vector<float> all = model(Tensor::FromVector(text, {1, length})).ToVector<float>();
  const std::vector<float> last(all.end() - kVocabulary, all.end());
  const double u = SamplingUniform(options.seed, sequence.sample, position);
  // Twice what LogitsOfTheCacheAreTheModels allows two orders of summation.
  float scale = 0;
  for (const float x : last) scale = std::max(scale, std::abs(x));
  const float rounding = 4e-6f * scale;
  TokenSampler sampler(
      {options.repetition_penalty, options.temperature, options.top_k, options.top_p});
  std::mt19937 random(1);
  std::uniform_real_distribution<float> noise(-rounding, rounding);
  std::set<int32_t> drawn;
  for (int i = 0; i < 1000; ++i) {
    std::vector<float> logits = last;
    for (float& x : logits) x += noise(random);
    drawn.insert(sampler.Draw(logits, u));
  }
  return drawn.count(*g) + drawn.count(*w) == 2;
}

TEST_P(GenerateTest, InF32TheCacheChangesTokensOnlyAtTies) {
  const std::vector<GenerateSequence> prompts = Prompts();
  int64_t differing = 0;
  for (GenerateOptions options : {kGreedy, kSampled}) {
    for (int64_t slide : {0, 7, 24}) {
      options.slide = slide;
      GenerateOptions without = options;
      without.kv_cache = false;
      const auto got = Batch(prompts, options), want = Batch(prompts, without);
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == want[i]) continue;
        ++differing;
        EXPECT_TRUE(DifferAtATie(model_, prompts[i], got[i], want[i], options))
            << "text " << i << ", slide " << slide;
      }
    }
  }
  EXPECT_LE(differing, 2);  // of 60
}

// Even the bits are the same: a prompt is computed in a batch as it is alone.
TEST_P(GenerateTest, ABatchGivesWhatEachPromptGivesAlone) {
  const std::vector<GenerateSequence> prompts = Prompts();
  for (const GenerateOptions& options : {kGreedy, kSampled, kPenalised}) {
    const auto together = Batch(prompts, options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(together[i], Batch({prompts[i]}, options)[0]) << i;
    }
    GenerateOptions two_at_once = options;
    two_at_once.batch_size = 2;
    EXPECT_EQ(together, Batch(prompts, two_at_once));
  }
}

// More sequences than kFewRows.
TEST_P(GenerateTest, LargeBatchesToo) {
  std::vector<GenerateSequence> sequences;
  for (int64_t s = 0; s < kFewRows + 5; ++s) sequences.push_back({.prompt = {3, 1}, .sample = s});
  GenerateOptions options = kSampled;
  options.tokens = 30;
  options.batch_size = 100;
  const auto together = Batch(sequences, options);
  for (size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_EQ(together[i], Batch({sequences[i]}, options)[0]) << i;
  }
  EXPECT_NE(together[0], together[1]);
}

// The logits of each pass with a cache against those of the model over the whole context: they
// differ only by rounding.
TEST_P(GenerateTest, LogitsOfTheCacheAreTheModels) {
  const int64_t block = model_.config().block_size;
  std::vector<int32_t> text;
  for (int64_t i = 0; i < block; ++i) text.push_back(static_cast<int32_t>(i * 7 % 61));
  const NoGrad no_grad;
  const Tensor all = model_(Tensor::FromVector(text, {1, block}));
  double scale = 0;
  for (float x : all.ToVector<float>()) scale = std::max<double>(scale, std::abs(x));
  ASSERT_GT(scale, 1);
  for (int64_t prompt : {1, 2, 9, 23}) {
    nn::KvCache cache(2, block);
    int64_t done = 0;
    for (int64_t n = prompt; done < block; n = 1) {
      const std::span<const int32_t> ids(text.data() + done, static_cast<size_t>(n));
      const nn::KvCacheScope scope(cache, {1}, n, kCpu);
      const Tensor logits = model_(Tensor::FromSpan(ids, {1, n}));
      scope.Commit();
      done += n;
      ASSERT_EQ(logits.shape(), Shape({1, 1, kVocabulary}));
      const std::vector<float> got = logits.ToVector<float>();
      const std::vector<float> want = all.Slice(1, done - 1, done).ToVector<float>();
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6 * scale) << done;
    }
    EXPECT_EQ(cache.length(1), block);
    EXPECT_EQ(cache.length(0), 0);
  }
}

// A text can be continued in a second call: a draw depends on the position, not on the call.
TEST_P(GenerateTest, TwoPartsGiveTheSameText) {
  for (const GenerateOptions& options : {kGreedy, kSampled, kPenalised}) {
    const std::vector<int32_t> prompt = {4, 9, 2};
    const std::vector<int32_t> whole = Generate(model_, prompt, kVocabulary, options);
    for (int64_t first : {int64_t{1}, int64_t{20}, int64_t{21}, kTokens - 5}) {
      GenerateOptions part = options;
      part.tokens = first;
      std::vector<int32_t> text = prompt;
      for (int32_t id : Generate(model_, prompt, kVocabulary, part)) text.push_back(id);
      part.tokens = options.tokens - first;
      for (int32_t id : Generate(model_, text, kVocabulary, part)) text.push_back(id);
      EXPECT_EQ(std::vector<int32_t>(text.begin() + 3, text.end()), whole) << first;
    }
  }
}

TEST_P(GenerateTest, BitsDoNotDependOnThreads) {
  const int threads = NumThreads();
  std::vector<std::vector<std::vector<int32_t>>> results;
  for (int n : {1, 2, 3}) {
    SetNumThreads(n);
    results.push_back(Batch(Prompts(), kSampled));
  }
  SetNumThreads(threads);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// A text is what its definition says, computed token by token with the plain model.
TEST_P(GenerateTest, GreedyIsTheLikeliestTokenOfTheContext) {
  GenerateOptions options = kGreedy;
  options.slide = 5;
  std::vector<int32_t> text = {8, 30};
  for (int32_t id : Generate(model_, text, kVocabulary, options)) {
    const int64_t start = ContextStart(static_cast<int64_t>(text.size()), 24, 5);
    const std::span<const int32_t> context = std::span(text).subspan(static_cast<size_t>(start));
    const int64_t n = static_cast<int64_t>(context.size());
    ASSERT_LE(n, 24);
    const NoGrad no_grad;
    const auto row = model_(Tensor::FromSpan(context, {1, n})).Slice(1, n - 1, n).ToVector<float>();
    ASSERT_EQ(id, std::max_element(row.begin(), row.end()) - row.begin());
    text.push_back(id);
  }
  EXPECT_EQ(text.size(), static_cast<size_t>(2 + kTokens));
}

// ---- What options do. ----

TEST_P(GenerateTest, SeedsAndSamplesGiveOtherTexts) {
  GenerateOptions other = kSampled;
  other.seed = 5;
  const auto a = Batch({{.prompt = {1, 2}}, {.prompt = {1, 2}, .sample = 1}}, kSampled);
  EXPECT_NE(a[0], a[1]);
  EXPECT_NE(a[0], Batch({{.prompt = {1, 2}}}, other)[0]);
  EXPECT_EQ(a[0], Batch({{.prompt = {1, 2}}}, kSampled)[0]);
}

TEST_P(GenerateTest, ThePenaltyMakesRepetitionsRare) {
  const auto distinct = [&](double penalty) {
    GenerateOptions options{.tokens = 40, .temperature = 0, .repetition_penalty = penalty};
    const auto ids = Generate(model_, std::vector<int32_t>{1, 2}, kVocabulary, options);
    return std::set<int32_t>(ids.begin(), ids.end()).size();
  };
  EXPECT_GT(distinct(50), distinct(1) + 5);
}

TEST_P(GenerateTest, NeverDrawsThePaddingOfTheVocabulary) {
  const GenerateOptions options{.tokens = 60, .temperature = 10};
  for (int32_t id : Generate(model_, std::vector<int32_t>{1}, 4, options)) EXPECT_LT(id, 4);
}

TEST_P(GenerateTest, ASequenceThatIsStoppedLeavesTheOthersAlone) {
  std::map<int64_t, std::vector<int32_t>> seen;
  const std::vector<GenerateSequence> prompts = Prompts();
  const auto results =
      GenerateBatch(model_, prompts, kVocabulary, kSampled, [&](int64_t sequence, int32_t id) {
        seen[sequence].push_back(id);
        return sequence % 2 == 0 || seen[sequence].size() < 3;
      });
  const auto all = Batch(prompts, kSampled);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> want = all[i];
    if (i % 2 == 1) want.resize(3);
    EXPECT_EQ(results[i], want) << i;
    EXPECT_EQ(seen[static_cast<int64_t>(i)], want) << i;
  }
}

TEST_P(GenerateTest, CountsWhatItComputed) {
  GenerateStats stats;
  const std::vector<GenerateSequence> two = {{.prompt = {1, 2, 3}}, {.prompt = {4}}};
  GenerateBatch(model_, two, kVocabulary, {.tokens = 10}, {}, &stats);
  EXPECT_EQ(stats.prompt_tokens, 4);
  EXPECT_EQ(stats.tokens, 18);  // the first of each comes with its prompt
  EXPECT_GT(stats.prompt_seconds, 0);
  EXPECT_GT(stats.seconds, 0);
}

// Texts that begin as the one before, or as a part of it: answers and questions of a conversation.
// In f64, as above. Each token of a context is computed only if the one before differs there or
// earlier.
TEST_P(GenerateTest, AKeptContextChangesNoTokenAndIsNotComputedAgain) {
  Gpt model(GetParam().config);
  model.Materialize(kCpu, 3, DType::kF64);
  Spread(model, 11);
  const int64_t block = model.config().block_size, slide = 7;
  ContextCache kept;
  kept.Reserve(block, block);
  std::mt19937 random(9);
  std::vector<int32_t> text, held;  // what the cache should have
  for (int turn = 0; turn < (test::kSanitized ? 8 : 30); ++turn) {
    text.resize(turn % 5 == 4 ? random() % text.size() : text.size());  // some go another way
    for (uint32_t i = 0; i <= random() % 4; ++i) {
      text.push_back(static_cast<int32_t>(random() % 61));
    }
    if (turn % 8 == 7) text.resize(3);  // the beginning of what is there
    const auto length = static_cast<int64_t>(text.size());
    const auto context = std::span<const int32_t>(text).subspan(
        static_cast<size_t>(ContextStart(length, block, slide)));
    const auto known = std::ranges::mismatch(context.first(context.size() - 1), held).in2;
    const GenerateOptions options{
        .tokens = 1 + turn % 3, .temperature = turn % 2 == 0 ? 1.0 : 0.0, .slide = slide};
    GenerateStats stats;
    const std::vector<int32_t> got = Generate(model, text, kVocabulary, options, {}, &kept, &stats);
    EXPECT_EQ(got, Generate(model, text, kVocabulary, options)) << "turn " << turn;
    EXPECT_EQ(stats.prompt_tokens, std::ssize(context) - (known - held.begin())) << turn;
    text.insert(text.end(), got.begin(), got.end());
    // The last token is drawn, not computed.
    const int64_t computed = std::ssize(text) - 1;
    held.assign(text.begin() + ContextStart(computed, block, slide), text.begin() + computed);
  }
  GenerateOptions without{.tokens = 3, .kv_cache = false};
  EXPECT_EQ(Generate(model, text, kVocabulary, without, {}, &kept),
            Generate(model, text, kVocabulary, without));
}

TEST(ContextCacheTest, GrowsByDoublingUpToTheContext) {
  ContextCache kept;
  EXPECT_EQ(kept.Reserve(5, 24).capacity(), 5);
  kept.Append(std::vector<int32_t>{1, 2});
  EXPECT_EQ(kept.Reserve(3, 24).capacity(), 5);
  EXPECT_EQ(kept.Reserve(6, 24).capacity(), 10);
  EXPECT_EQ(kept.KeepPrefixOf(std::vector<int32_t>{1, 2, 3}), 0) << "the larger one is empty";
  EXPECT_EQ(kept.Reserve(23, 24).capacity(), 23);
  EXPECT_EQ(kept.Reserve(24, 24).capacity(), 24);
  EXPECT_THROW(kept.Reserve(25, 24), ArgumentError);
  EXPECT_THROW(kept.KeepPrefixOf({}), ArgumentError);
}

// The cache is allocated once, and each token reuses the memory of the last one: after a few tokens
// no memory is requested from the system, and live memory does not grow.
TEST_P(GenerateTest, TokensReuseMemory) {
  const auto run = [&](const std::function<bool(int32_t)>& on_token) {
    Generate(model_, std::vector<int32_t>{1, 2, 3}, kVocabulary, {.tokens = 20}, on_token);
  };
  run({});  // from now on the model has its tables (angles of positions)
  std::vector<int64_t> live, system;
  const int64_t before = GetAllocator(kCpu).stats().live_bytes;
  run([&](int32_t) {
    const AllocatorStats stats = GetAllocator(kCpu).stats();
    live.push_back(stats.live_bytes);
    system.push_back(stats.system_allocations);
    return true;
  });
  EXPECT_EQ(GetAllocator(kCpu).stats().live_bytes, before);
  for (size_t i = 3; i < live.size(); ++i) {
    EXPECT_EQ(live[i], live[2]) << i;
    // Under sanitizers every block is freed.
    if (!test::kSanitized) {
      EXPECT_EQ(system[i], system[2]) << i;
    }
  }
  const GptConfig& c = model_.config();
  const int64_t positions = 3 + 20 - 1;
  EXPECT_GE(live[2] - before, 2 * c.n_layer * positions * c.n_embd * 4 / c.n_head);
}

TEST_P(GenerateTest, RefusesBadArguments) {
  const auto message = [&](const std::vector<GenerateSequence>& sequences, int64_t limit,
                           const GenerateOptions& options) -> std::string {
    try {
      GenerateBatch(model_, sequences, limit, options);
    } catch (const ArgumentError& e) {
      return e.what();
    }
    return "no error";
  };
  using testing::HasSubstr;
  const std::vector<GenerateSequence> good = {{.prompt = {1}}};
  EXPECT_THAT(message({{}}, 61, {}), HasSubstr("a prompt needs at least one token"));
  EXPECT_THAT(message({{.prompt = {1, 61}}}, 61, {}), HasSubstr("token 61 of the prompt"));
  EXPECT_THAT(message({{.prompt = {-1}}}, 61, {}), HasSubstr("token -1 of the prompt"));
  EXPECT_THAT(message({{.prompt = {1}, .sample = -1}}, 61, {}), HasSubstr("at least 0, got -1"));
  EXPECT_THAT(message(good, 62, {}), HasSubstr("vocab_limit must be"));
  EXPECT_THAT(message(good, 0, {}), HasSubstr("vocab_limit must be"));
  EXPECT_THAT(message(good, 61, {.tokens = -1}), HasSubstr("tokens must be at least 0"));
  EXPECT_THAT(message(good, 61, {.slide = 25}), HasSubstr("block_size 24, got 25"));
  EXPECT_THAT(message(good, 61, {.slide = -1}), HasSubstr("slide must be at least 0"));
  EXPECT_THAT(message(good, 61, {.batch_size = 0}), HasSubstr("batch_size must be at least 1"));
  EXPECT_THAT(message(good, 61, {.top_p = 2}), HasSubstr("top_p"));
  EXPECT_EQ(Generate(model_, std::vector<int32_t>{1}, 61, {.tokens = 0}).size(), 0u);
}

TEST(ContextStartTest, MovesByTheSlideWhenFull) {
  EXPECT_EQ(ContextStart(1, 8, 4), 0);
  EXPECT_EQ(ContextStart(8, 8, 4), 0);
  EXPECT_EQ(ContextStart(9, 8, 4), 4);
  EXPECT_EQ(ContextStart(12, 8, 4), 4);
  EXPECT_EQ(ContextStart(13, 8, 4), 8);
  for (int64_t slide = 1; slide <= 8; ++slide) {
    for (int64_t position = 1; position < 60; ++position) {
      const int64_t context = position - ContextStart(position, 8, slide);
      EXPECT_LE(context, 8);
      EXPECT_GE(context, std::min<int64_t>(position, 8 - slide + 1));
      EXPECT_EQ(ContextStart(position, 8, slide) % slide, 0);
      EXPECT_LE(ContextStart(position, 8, slide), ContextStart(position + 1, 8, slide));
    }
  }
  EXPECT_EQ(ContextStart(50, 8, 1), 42);
}

}  // namespace
}  // namespace lockstep::models
