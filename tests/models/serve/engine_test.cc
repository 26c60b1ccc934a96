// The engine: texts that come and go as they like have the bits that they have alone.
#include "models/serve/engine.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "models/evaluate/score.h"
#include "models/gpt/generate.h"
#include "tests/models/serve/served.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using test::kVocabulary;
using testing::HasSubstr;

// What came of a request.
struct Outcome {
  std::vector<int32_t> ids;
  std::vector<ScoredToken> prompt, tokens;
  int ends = 0;
  std::string error;
  std::shared_ptr<std::atomic<bool>> abandoned = std::make_shared<std::atomic<bool>>(false);
};

EngineRequest RequestFor(TextRequest text, Outcome* outcome, int64_t likeliest = -1,
                         bool scores_prompt = false) {
  EngineRequest request{.text = std::move(text),
                        .likeliest = likeliest,
                        .on_token =
                            [outcome](const ScoredToken& token) {
                              EXPECT_EQ(outcome->ends, 0);
                              outcome->ids.push_back(token.id);
                              outcome->tokens.push_back(token);
                              return true;
                            },
                        .on_end =
                            [outcome](const std::string& error) {
                              ++outcome->ends;
                              outcome->error = error;
                            },
                        .abandoned = outcome->abandoned};
  if (scores_prompt) {
    request.on_prompt_token = [outcome](const ScoredToken& token) {
      EXPECT_TRUE(outcome->ids.empty());
      outcome->prompt.push_back(token);
    };
  }
  return request;
}

TextRequest DrawText(std::mt19937& random, int64_t longest) {
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  TextRequest text;
  const int64_t length = 1 + below(static_cast<uint32_t>(longest));
  for (int64_t i = 0; i < length; ++i) {
    text.prompt.push_back(static_cast<int32_t>(below(kVocabulary)));
  }
  text.tokens = 1 + below(60);
  text.sampling = {.repetition_penalty = below(3) == 0 ? 1.2 : 1,
                   .temperature = static_cast<double>(below(3)) * 0.6,
                   .top_k = below(2) * 20,
                   .top_p = below(2) == 0 ? 0.9 : 1};
  text.seed = random();
  text.sample = below(3);
  return text;
}

std::vector<int32_t> Alone(Gpt& model, const TextRequest& text) {
  const std::vector<GenerateSequence> one = {{.prompt = text.prompt, .sample = text.sample}};
  return GenerateBatch(model, one, kVocabulary,
                       {.tokens = text.tokens,
                        .temperature = text.sampling.temperature,
                        .top_k = text.sampling.top_k,
                        .top_p = text.sampling.top_p,
                        .repetition_penalty = text.sampling.repetition_penalty,
                        .seed = text.seed})[0];
}

// Drawn requests that come at drawn times, more than fit at once and than kFewRows, some of which
// are abandoned, are scored, or go on beyond the context.
TEST(EngineTest, TextsAreThoseOfGenerateWhateverElseIsInTheBatch) {
  for (const GptConfig& shape : {test::Gpt2Shape(), test::LlamaShape()}) {
    const auto model = test::MakeModel(shape);
    for (const int64_t max_batch : {1, 3, 20}) {
      std::mt19937 random(static_cast<unsigned>(7 + max_batch));
      const size_t n = test::kSanitized ? 12 : 40;
      std::vector<TextRequest> texts;
      std::vector<Outcome> outcomes(n);
      for (size_t i = 0; i < n; ++i) texts.push_back(DrawText(random, 48));
      Engine engine(*model, kVocabulary, {.max_batch = max_batch});
      for (size_t next = 0; next < n || engine.Step();) {
        while (next < n && random() % 3 == 0) {
          const bool scored = random() % 3 == 0;
          ASSERT_TRUE(
              engine.Submit({RequestFor(texts[next], &outcomes[next], scored ? 2 : -1, scored)}));
          ++next;
        }
        if (next < n) engine.Step();
        if (random() % 20 == 0) *outcomes[random() % n].abandoned = true;
      }
      for (size_t i = 0; i < n; ++i) {
        const Outcome& got = outcomes[i];
        EXPECT_EQ(got.ends, 1) << i;
        std::vector<int32_t> want = Alone(*model, texts[i]);
        if (*got.abandoned) want.resize(std::min(want.size(), got.ids.size()));
        EXPECT_EQ(got.ids, want) << i << " of batches of " << max_batch;
        if (!got.prompt.empty()) {
          EXPECT_EQ(got.prompt.size(), texts[i].prompt.size() - 1);
        }
      }
    }
  }
}

TEST(EngineTest, ScoresArePartsOfTheModelsDistribution) {
  const auto model = test::MakeModel(test::Gpt2Shape());
  Engine engine(*model, kVocabulary, {});
  std::mt19937 random(3);
  for (int round = 0; round < 8; ++round) {
    TextRequest text = DrawText(random, 40);
    text.tokens = 3;
    Outcome got, all;
    ASSERT_TRUE(engine.Submit(
        {RequestFor(text, &got, 4, true), RequestFor(text, &all, kVocabulary, true)}));
    while (engine.Step()) continue;
    // Position by position, as evaluate scores them.
    std::vector<ScoreRequest> requests;
    std::vector<int32_t> ids = text.prompt;
    ids.insert(ids.end(), got.ids.begin(), got.ids.end());
    std::vector<ScoredToken> tokens = got.prompt;
    tokens.insert(tokens.end(), got.tokens.begin(), got.tokens.end());
    ASSERT_EQ(tokens.size(), ids.size() - 1);
    for (size_t i = 1; i < ids.size(); ++i) {
      requests.push_back({.ids = {ids.begin(), ids.begin() + static_cast<int64_t>(i) + 1},
                          .scored = 1,
                          .wants_greedy = true});
      EXPECT_EQ(tokens[i - 1].id, ids[i]);
    }
    const std::vector<Score> want = ScoreRequests(*model, requests, {});
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(tokens[i].log_probability, want[i].log_probability, 2e-5);
      EXPECT_EQ(tokens[i].likeliest.size(), 4u);
      EXPECT_EQ(tokens[i].likeliest[0].first == tokens[i].id, want[i].greedy);
    }
    for (const ScoredToken& token : all.tokens) {
      double sum = 0, last = 0;
      for (const auto& [id, value] : token.likeliest) {
        EXPECT_LE(value, last);
        if (id == token.id) {
          EXPECT_EQ(value, token.log_probability);
        }
        sum += std::exp(last = value);
      }
      EXPECT_EQ(token.likeliest.size(), static_cast<size_t>(kVocabulary));
      EXPECT_NEAR(sum, 1, 1e-12);
    }
  }
}

TEST(EngineTest, APromptCanOnlyBeScored) {
  const auto model = test::MakeModel(test::Gpt2Shape());
  Engine engine(*model, kVocabulary, {});
  Outcome got;
  ASSERT_TRUE(engine.Submit({RequestFor({.prompt = {5, 6, 7}, .tokens = 0}, &got, 0, true)}));
  while (engine.Step()) continue;
  EXPECT_EQ(got.ends, 1);
  EXPECT_EQ(got.prompt.size(), 2u);
  EXPECT_TRUE(got.ids.empty());
}

// A context that is smaller than the model's takes the memory of so many tokens, and changes no
// text that fits it.
TEST(EngineTest, ASmallerContextHasTheSameTexts) {
  const auto model = test::MakeModel(test::Gpt2Shape());
  Engine engine(*model, kVocabulary, {.max_batch = 2, .context = 20});
  const TextRequest text{.prompt = {9, 8, 7, 6}, .tokens = 17};
  Outcome got;
  ASSERT_TRUE(engine.Submit({RequestFor(text, &got)}));
  while (engine.Step()) continue;
  EXPECT_EQ(got.ids, Alone(*model, text));
  EXPECT_EQ(got.error, "");
}

TEST(EngineTest, ATextThatFailsLeavesTheOthersAlone) {
  const auto model = test::MakeModel(test::Gpt2Shape());
  Engine engine(*model, kVocabulary, {});
  const TextRequest good{.prompt = {1, 2, 3}, .tokens = 9};
  Outcome first, bad, last;
  ASSERT_TRUE(
      engine.Submit({RequestFor(good, &first), RequestFor({.prompt = {1, 1000}, .tokens = 9}, &bad),
                     RequestFor(good, &last)}));
  while (engine.Step()) continue;
  EXPECT_EQ(first.ids, Alone(*model, good));
  EXPECT_EQ(last.ids, first.ids);
  EXPECT_THAT(bad.error, HasSubstr("token 1000 of the prompt"));
  EXPECT_EQ(bad.ends, 1);
}

// As a GPU's memory that runs out in the middle of a step: here a cache that is too small.
TEST(EngineTest, AStepThatFailsEndsAllTextsAndTheNextOnesGoOn) {
  const auto model = test::MakeModel(test::Gpt2Shape());
  Engine engine(*model, kVocabulary, {.max_batch = 2, .context = 8});
  Outcome one, two, next;
  ASSERT_TRUE(engine.Submit({RequestFor({.prompt = {1, 2, 3}, .tokens = 30}, &one),
                             RequestFor({.prompt = {4}, .tokens = 30}, &two)}));
  while (engine.Step()) continue;
  EXPECT_EQ(one.ends + two.ends, 2);
  EXPECT_THAT(one.error, HasSubstr("a cache of 8"));
  EXPECT_THAT(two.error, HasSubstr("a cache of 8"));
  const TextRequest fits{.prompt = {1, 2, 3}, .tokens = 5};
  ASSERT_TRUE(engine.Submit({RequestFor(fits, &next)}));
  while (engine.Step()) continue;
  EXPECT_EQ(next.ids, Alone(*model, fits));
}

TEST(EngineTest, TheQueueHasABoundAndTakesAllOrNone) {
  const auto model = test::MakeModel(test::Gpt2Shape());
  Engine engine(*model, kVocabulary, {.max_batch = 1, .max_queue = 3});
  std::vector<Outcome> outcomes(5);
  const TextRequest text{.prompt = {1}, .tokens = 2};
  ASSERT_TRUE(engine.Submit({RequestFor(text, &outcomes[0]), RequestFor(text, &outcomes[1])}));
  EXPECT_FALSE(engine.Submit({RequestFor(text, &outcomes[2]), RequestFor(text, &outcomes[3])}));
  EXPECT_TRUE(engine.Submit({RequestFor(text, &outcomes[4])}));
  while (engine.Step()) continue;
  for (const size_t taken : {0, 1, 4}) EXPECT_EQ(outcomes[taken].ids.size(), 2u);
  for (const size_t refused : {2, 3}) EXPECT_EQ(outcomes[refused].ends, 0);
}

// Whoever waits gets an end, also those who were still to start.
TEST(EngineTest, TheEndOfRunEndsAll) {
  const auto model = test::MakeModel(test::Gpt2Shape());
  Engine engine(*model, kVocabulary, {.max_batch = 1});
  Outcome growing, waiting;
  std::atomic<bool> stop{false};
  EngineRequest first = RequestFor({.prompt = {1}, .tokens = 1'000'000}, &growing);
  first.on_token = [&](const ScoredToken&) {
    stop = true;
    return true;
  };
  ASSERT_TRUE(engine.Submit({std::move(first), RequestFor({.prompt = {1}}, &waiting)}));
  std::thread runs([&] { engine.Run([&] { return stop.load(); }); });
  runs.join();
  EXPECT_EQ(growing.error, "the server stops");
  EXPECT_EQ(waiting.error, "the server stops");
  EXPECT_EQ(growing.ends + waiting.ends, 2);
  EXPECT_FALSE(engine.Submit({RequestFor({.prompt = {1}}, &waiting)}));
}

TEST(ScoreTokenTest, TiesGoToSmallerIds) {
  const float low = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {0, 2, low, 2};
  const ScoredToken token = ScoreToken(0, logits, 3);
  EXPECT_DOUBLE_EQ(token.log_probability, -std::log(1 + 2 * std::exp(2.0)));
  ASSERT_EQ(token.likeliest.size(), 3u);
  EXPECT_EQ(token.likeliest[0].first, 1);
  EXPECT_EQ(token.likeliest[1].first, 3);
  EXPECT_EQ(token.likeliest[2].first, 0);
  EXPECT_EQ(ScoreToken(0, logits, 100).likeliest.size(), 4u);
}

}  // namespace
}  // namespace lockstep::models
