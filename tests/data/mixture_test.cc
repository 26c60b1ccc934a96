#include "data/mixture.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Weights(std::string_view text) {
  std::vector<int64_t> weights;
  for (const MixtureItem& item : ParseMixture(text)) weights.push_back(item.weight);
  return weights;
}

TEST(ParseMixture, WeightsAreExactRatios) {
  EXPECT_THAT(Weights("web.bin:0.7,code.bin:0.3"), ElementsAre(7, 3));
  EXPECT_THAT(Weights("a:1"), ElementsAre(1));
  EXPECT_THAT(Weights("a:5"), ElementsAre(1));
  EXPECT_THAT(Weights("a:1,b:1,c:1"), ElementsAre(1, 1, 1));
  EXPECT_THAT(Weights("a:.5,b:1.25,c:2."), ElementsAre(2, 5, 8));
  EXPECT_THAT(Weights("a:0.000001,b:0.5"), ElementsAre(1, 500000));
  EXPECT_EQ(ParseMixture("s3:x*.bin:2,b:1")[0].path, "s3:x*.bin");
  const std::vector<MixtureItem> spaced = ParseMixture(" a:0.5, b c:0.5\n");
  ASSERT_EQ(spaced.size(), 2u);
  EXPECT_EQ(spaced[0].path, "a");
  EXPECT_EQ(spaced[1].path, "b c");
}

TEST(ParseMixture, ErrorsNameTheItem) {
  const auto message = [](std::string_view text) {
    return MessageOf<InputError>([&] { ParseMixture(text); });
  };
  EXPECT_THAT(message(""), HasSubstr("expected path:weight"));
  EXPECT_THAT(message("a.bin"), HasSubstr("\"a.bin\": expected path:weight"));
  EXPECT_THAT(message("a:1,"), HasSubstr("expected path:weight"));
  EXPECT_THAT(message(":1"), HasSubstr("expected path:weight"));
  EXPECT_THAT(message("a:1,b:"), HasSubstr("\"b:\": the weight must be"));
  for (const char* bad : {"a:-1", "a:1e3", "a:nan", "a:0x1", "a: 1", "a:1.2.3", "a:.",
                          "a:12345678901", "a:0.1234567891"}) {
    EXPECT_THAT(message(bad), HasSubstr("the weight must be")) << bad;
  }
  EXPECT_THAT(message("a:0,b:1"), HasSubstr("the weight is 0"));
  EXPECT_THAT(message("a:0.5,b:0.2,a:0.3"), HasSubstr("a is there twice"));
  EXPECT_THAT(message("a:0.123456789,b:0.987654321"), HasSubstr("too precise"));
}

TEST(MixtureSchedule, ProportionsHoldAtEveryPrefix) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<int64_t> weights(1 + random() % 8);
    int64_t sum = 0;
    for (int64_t& w : weights) sum += w = 1 + random() % (round % 3 == 0 ? 5 : 1000);
    const MixtureSchedule schedule(weights);
    std::vector<int64_t> counts(weights.size());
    for (int64_t k = 0; k < 2 * sum + 10; ++k) {
      if (k % 97 == 0) {
        ASSERT_EQ(schedule.CountsOf(k), counts);
      }
      const MixtureSchedule::Place place = schedule(k);
      ASSERT_EQ(place.index, counts[place.source]++);
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_LT(std::abs(counts[i] * sum - (k + 1) * weights[i]), sum) << k << " " << i;
      }
    }
  }
  EXPECT_THROW(MixtureSchedule({}), ArgumentError);
  EXPECT_THROW(MixtureSchedule({1, 0}), ArgumentError);
  EXPECT_THROW(MixtureSchedule({1 << 20, 1}), ArgumentError);
}

constexpr int64_t kBlock = 5;

// Each sample is that of a sampler of its source alone.
TEST(MixtureSampler, EqualsAPlainLoopOverSamplersOfTheSources) {
  const std::vector<MixtureStream> streams = {{203, 5}, {57, 2}, {1000, 4}};
  const MixtureSchedule schedule({5, 2, 4});
  for (const Order order : {Order::kShuffled, Order::kRandom, Order::kSequential}) {
    const Sampler sampler(order, 9, streams, kBlock);
    EXPECT_EQ(sampler.num_tokens(), 1260);
    EXPECT_EQ(sampler.windows_per_epoch(), 40 + 11 + 199);
    std::vector<int64_t> together(700);
    sampler.WindowStarts(0, together);
    std::vector<std::vector<int64_t>> of_source(3);
    for (int64_t k = 0; k < 700; ++k) {
      ASSERT_EQ(sampler.WindowStart(k), together[k]);
      const int64_t source = schedule(k).source;
      const int64_t begin = source == 0 ? 0 : source == 1 ? 203 : 260;
      const int64_t local = together[k] - begin;
      ASSERT_GE(local, 0);
      ASSERT_LE(local + kBlock + 1, streams[source].num_tokens) << "the window leaves its source";
      of_source[source].push_back(local);
    }
    // The first source's samples are those of a run on it alone.
    std::vector<int64_t> alone(of_source[0].size());
    Sampler(order, 9, 203, kBlock).WindowStarts(0, alone);
    EXPECT_EQ(of_source[0], alone);
    if (order == Order::kRandom) continue;
    // Each source has every window once in each of its own epochs.
    for (int source = 0; source < 3; ++source) {
      const int64_t windows = (streams[source].num_tokens - 1) / kBlock;
      for (size_t i = 0; i + windows <= of_source[source].size(); i += windows) {
        const auto first = of_source[source].begin() + i;
        std::vector<int64_t> epoch(first, first + windows);
        EXPECT_EQ(std::ranges::is_sorted(epoch), order == Order::kSequential);
        std::ranges::sort(epoch);
        for (int64_t w = 0; w < windows; ++w) ASSERT_EQ(epoch[w], w * kBlock);
      }
    }
  }
}

TEST(MixtureSampler, OneSourceIsThatSource) {
  for (const Order order : {Order::kShuffled, Order::kRandom, Order::kSequential}) {
    std::vector<int64_t> mixed(300), plain(300);
    Sampler(order, 4, std::vector<MixtureStream>{{333, 1}}, kBlock).WindowStarts(7, mixed);
    Sampler(order, 4, 333, kBlock).WindowStarts(7, plain);
    EXPECT_EQ(mixed, plain);
  }
}

TEST(MixtureSampler, TellsEpochs) {
  const Sampler sampler(Order::kShuffled, 1, std::vector<MixtureStream>{{101, 3}, {51, 1}}, kBlock);
  EXPECT_THAT(sampler.EpochsOf(40), ElementsAre(30 / 20.0, 10 / 10.0));
  EXPECT_THAT(Sampler(Order::kShuffled, 1, 101, kBlock).EpochsOf(30), ElementsAre(1.5));
  EXPECT_THROW(Sampler(Order::kShuffled, 1, std::vector<MixtureStream>{{101, 3}, {5, 1}}, kBlock),
               ArgumentError);
}

// A loader that starts at step s, and ranks that share the micro-batches, get the same samples.
TEST(MixtureSampler, ResumesAndSharesExactly) {
  std::vector<int32_t> ids(304);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto tokens = std::make_shared<MemoryTokens>(ids);
  const Sampler sampler(Order::kShuffled, 2, std::vector<MixtureStream>{{204, 2}, {100, 1}},
                        kBlock);
  std::vector<std::vector<int32_t>> all;
  Loader whole(tokens, sampler, {.batch_size = 3, .micro_batches = 4});
  for (int i = 0; i < 80; ++i) all.push_back(whole.Next().inputs);
  for (const int64_t step : {1, 7, 19}) {
    for (const int64_t rank : {0, 1}) {
      Loader part(tokens, sampler,
                  {.batch_size = 3, .micro_batches = 4, .micro_order = {rank, rank + 2}}, step);
      for (int64_t s = step; s < 20; ++s) {
        for (const int64_t micro : {rank, rank + 2}) {
          ASSERT_EQ(part.Next().inputs, all[s * 4 + micro]) << s << " " << micro;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
