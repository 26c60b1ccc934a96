#include "models/gpt/token_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/error.h"

namespace lockstep::models {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(size_t n, unsigned seed, double spread = 2) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(spread));
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

// The definitions, implemented literally and slowly: everything is sorted and summed.
std::map<int32_t, double> NaiveCandidates(std::vector<double> logits, const SamplingOptions& o,
                                          const std::set<int32_t>& seen = {}) {
  for (int32_t id : seen) {
    double& x = logits[static_cast<size_t>(id)];
    x = x > 0 ? x / o.repetition_penalty : x * o.repetition_penalty;
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (o.temperature == 0) return {{order[0], 1.0}};
  if (o.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(o.top_k)));
  const auto softmax = [&] {
    std::map<int32_t, double> p;
    double sum = 0;
    for (int32_t id : order)
      sum += p[id] = std::exp((logits[id] - logits[order[0]]) / o.temperature);
    for (auto& [id, x] : p) x /= sum;
    return p;
  };
  const std::map<int32_t, double> before = softmax();
  double share = 0;
  size_t n = 0;
  while (n < order.size() && (o.top_p == 1 || share < o.top_p)) share += before.at(order[n++]);
  order.resize(n);
  return softmax();
}

std::map<int32_t, double> Candidates(const std::vector<float>& logits, const SamplingOptions& o,
                                     const std::set<int32_t>& seen = {}) {
  std::vector<uint8_t> flags(logits.size());
  for (int32_t id : seen) flags[static_cast<size_t>(id)] = 1;
  TokenSampler sampler(o);
  std::map<int32_t, double> out;
  for (const auto& [id, p] : sampler.Candidates(logits, flags)) out[id] = p;
  return out;
}

void ExpectEqual(const std::map<int32_t, double>& got, const std::map<int32_t, double>& want,
                 double tolerance = 1e-12) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, p] : want) {
    ASSERT_TRUE(got.contains(id)) << id;
    EXPECT_NEAR(got.at(id), p, tolerance) << id;
  }
}

std::vector<double> Wide(const std::vector<float>& x) { return {x.begin(), x.end()}; }

TEST(Candidates, AreThoseOfTheDefinitions) {
  int checked = 0;
  for (size_t vocab : {1u, 2u, 7u, 65u, 1000u}) {
    for (double temperature : {0.0, 0.3, 1.0, 2.5}) {
      for (int64_t top_k : {0, 1, 2, 5, 64, 5000}) {
        for (double top_p : {1e-9, 0.1, 0.5, 0.9, 0.999, 1.0}) {
          const std::vector<float> logits = RandomLogits(vocab, static_cast<unsigned>(++checked));
          const SamplingOptions o{.temperature = temperature, .top_k = top_k, .top_p = top_p};
          SCOPED_TRACE(StrCat("vocab ", vocab, " temperature ", temperature, " top_k ", top_k,
                              " top_p ", top_p));
          ExpectEqual(Candidates(logits, o), NaiveCandidates(Wide(logits), o));
        }
      }
    }
  }
}

TEST(Candidates, ThePenaltyIsThatOfCtrl) {
  const std::set<int32_t> seen = {0, 3, 4, 9};
  for (double penalty : {0.5, 1.0, 1.3, 4.0}) {
    for (double temperature : {0.0, 0.8}) {
      const std::vector<float> logits = RandomLogits(10, static_cast<unsigned>(100 * penalty));
      const SamplingOptions o{
          .repetition_penalty = penalty, .temperature = temperature, .top_k = 6, .top_p = 0.9};
      // The penalty is applied in f32, as logits are.
      ExpectEqual(Candidates(logits, o, seen), NaiveCandidates(Wide(logits), o, seen), 1e-6);
    }
  }
  // Both signs, by hand: 2 / 4 = 0.5 < 1, and -1 * 4 = -4 < -3.
  EXPECT_EQ(Candidates({2, 1}, {.repetition_penalty = 4, .temperature = 0}, {0}).begin()->first, 1);
  EXPECT_EQ(Candidates({-1, -3}, {.repetition_penalty = 4, .temperature = 0}, {0}).begin()->first,
            1);
  EXPECT_EQ(Candidates({2, 1}, {.repetition_penalty = 4, .temperature = 0}).begin()->first, 0);
}

TEST(Candidates, TiesGoToSmallerIds) {
  const std::vector<float> equal(6, 1.5f);
  const auto ids = [&](const SamplingOptions& o) {
    std::vector<int32_t> out;
    for (const auto& [id, p] : Candidates(equal, o)) out.push_back(id);
    return out;
  };
  EXPECT_EQ(ids({.temperature = 0}), std::vector<int32_t>({0}));
  EXPECT_EQ(ids({.top_k = 2}), std::vector<int32_t>({0, 1}));
  EXPECT_EQ(ids({.top_p = 0.45}), std::vector<int32_t>({0, 1, 2}));
}

TEST(Candidates, AreInvariant) {
  const std::vector<float> logits = RandomLogits(40, 3);
  const SamplingOptions o{.temperature = 0.7, .top_k = 20, .top_p = 0.8};
  const auto want = Candidates(logits, o);
  // Under adding a constant to all logits (one that f32 adds exactly enough).
  std::vector<float> shifted = logits, scaled = logits;
  for (float& x : shifted) x += 64;
  ExpectEqual(Candidates(shifted, o), want, 1e-5);
  // Under scaling logits and temperature.
  for (float& x : scaled) x *= 4;
  ExpectEqual(Candidates(scaled, {.temperature = 2.8, .top_k = 20, .top_p = 0.8}), want);
  // Under reordering the vocabulary.
  std::vector<float> reversed(logits.rbegin(), logits.rend());
  std::map<int32_t, double> mirrored;
  for (const auto& [id, p] : Candidates(reversed, o)) mirrored[39 - id] = p;
  ExpectEqual(mirrored, want);
  // Under limits that limit nothing.
  ExpectEqual(Candidates(logits, {.top_k = 40}), Candidates(logits, {}));
  ExpectEqual(Candidates(logits, {.top_p = 1}), Candidates(logits, {}));
  ExpectEqual(Candidates(logits, {.repetition_penalty = 1}, {1, 2}), Candidates(logits, {}));
  // A temperature near 0 is temperature 0.
  const auto cold = Candidates(logits, {.temperature = 1e-6});
  EXPECT_NEAR(cold.at(Candidates(logits, {.temperature = 0}).begin()->first), 1, 1e-12);
}

TEST(Candidates, InfinitelyUnlikelyTokensAreNeverDrawn) {
  TokenSampler sampler({});
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sampler.Draw(std::vector<float>{-kInfinity, 0.5f, -kInfinity}, i / 100.0), 1);
  }
}

TEST(TokenSampler, RefusesInvalidLogits) {
  TokenSampler sampler({});
  TokenSampler greedy({.temperature = 0});
  for (TokenSampler* s : {&sampler, &greedy}) {
    EXPECT_THROW(s->Draw(std::vector<float>{}, 0.5), ArgumentError);
    EXPECT_THROW(s->Draw(std::vector<float>{NAN, 1}, 0.5), ArgumentError);
    EXPECT_THROW(s->Draw(std::vector<float>{1, NAN}, 0.5), ArgumentError);
    EXPECT_THROW(s->Draw(std::vector<float>{1, kInfinity}, 0.5), ArgumentError);
    EXPECT_THROW(s->Draw(std::vector<float>{-kInfinity, -kInfinity}, 0.5), ArgumentError);
  }
}

TEST(TokenSampler, RefusesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const SamplingOptions& o : std::vector<SamplingOptions>{{.temperature = -1},
                                                               {.temperature = nan},
                                                               {.top_k = -1},
                                                               {.top_p = 0},
                                                               {.top_p = 1.01},
                                                               {.top_p = nan},
                                                               {.repetition_penalty = 0},
                                                               {.repetition_penalty = nan}}) {
    EXPECT_THROW(TokenSampler{o}, ArgumentError);
  }
  TokenSampler sampler({.repetition_penalty = 2});
  EXPECT_THROW(sampler.Draw(std::vector<float>{1, 2}, 0.5), ArgumentError);  // seen is missing
}

TEST(TokenSampler, DividesTheUnitIntervalInTheOrderOfIds) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};  // 1 : 2 : 5
  TokenSampler sampler({});
  EXPECT_EQ(sampler.Draw(logits, 0), 0);
  EXPECT_EQ(sampler.Draw(logits, 0.124), 0);
  EXPECT_EQ(sampler.Draw(logits, 0.126), 1);
  EXPECT_EQ(sampler.Draw(logits, 0.374), 1);
  EXPECT_EQ(sampler.Draw(logits, 0.376), 2);
  EXPECT_EQ(sampler.Draw(logits, std::nextafter(1.0, 0.0)), 2);
}

// ---- Frequencies of draws with a fixed seed. ----

// A chi-square variable exceeds this with probability 1e-4 (Wilson and Hilferty, 1931).
double ChiSquareLimit(double degrees) {
  const double z = 3.719, a = 2 / (9 * degrees);
  return degrees * std::pow(1 - a + z * std::sqrt(a), 3);
}

// The statistic of counts against probabilities; cells with few expected counts are merged.
void ExpectFrequencies(const std::map<int64_t, double>& probability,
                       const std::map<int64_t, int64_t>& counts, int64_t draws) {
  double statistic = 0, rare_expected = 0;
  int64_t cells = 0, rare_counted = 0, counted = 0;
  const auto add = [&](double expected, int64_t count) {
    statistic += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) /
                 expected;
    ++cells;
  };
  for (const auto& [cell, p] : probability) {
    const int64_t count = counts.contains(cell) ? counts.at(cell) : 0;
    counted += count;
    const double expected = p * static_cast<double>(draws);
    if (expected >= 10) {
      add(expected, count);
    } else {
      rare_expected += expected;
      rare_counted += count;
    }
  }
  EXPECT_EQ(counted, draws) << "a token of probability 0 was drawn";
  if (rare_expected > 1) add(rare_expected, rare_counted);
  ASSERT_GT(cells, 1);
  EXPECT_LT(statistic, ChiSquareLimit(static_cast<double>(cells - 1))) << cells << " cells";
}

TEST(Frequencies, AreTheProbabilities) {
  const std::vector<float> logits = RandomLogits(50, 8);
  constexpr int64_t kDraws = 40000;
  for (const SamplingOptions& o : std::vector<SamplingOptions>{{},
                                                               {.temperature = 0.6},
                                                               {.temperature = 1.7, .top_k = 12},
                                                               {.top_p = 0.8},
                                                               {.top_k = 30, .top_p = 0.9}}) {
    TokenSampler sampler(o);
    std::map<int64_t, int64_t> along_positions, along_samples, along_seeds;
    for (int64_t i = 0; i < kDraws; ++i) {
      ++along_positions[sampler.Draw(logits, SamplingUniform(1337, 0, i))];
      ++along_samples[sampler.Draw(logits, SamplingUniform(1337, i, 5))];
      ++along_seeds[sampler.Draw(logits, SamplingUniform(static_cast<uint64_t>(i), 0, 0))];
    }
    std::map<int64_t, double> want;
    for (const auto& [id, p] : NaiveCandidates(Wide(logits), o)) want[id] = p;
    ExpectFrequencies(want, along_positions, kDraws);
    ExpectFrequencies(want, along_samples, kDraws);
    ExpectFrequencies(want, along_seeds, kDraws);
  }
}

// Neighbouring draws are independent: the frequencies of pairs are products.
TEST(Frequencies, OfPairsAreProducts) {
  constexpr int64_t kCells = 12, kDraws = 60000;
  std::map<int64_t, double> want;
  for (int64_t i = 0; i < kCells * kCells; ++i) want[i] = 1.0 / (kCells * kCells);
  const auto cell = [](double u) { return static_cast<int64_t>(u * kCells); };
  std::map<int64_t, int64_t> positions, samples, seeds;
  for (int64_t i = 0; i < kDraws; ++i) {
    const uint64_t seed = static_cast<uint64_t>(i);
    ++positions[cell(SamplingUniform(7, 0, i)) * kCells + cell(SamplingUniform(7, 0, i + 1))];
    ++samples[cell(SamplingUniform(7, 0, i)) * kCells + cell(SamplingUniform(7, 1, i))];
    ++seeds[cell(SamplingUniform(seed, 0, 3)) * kCells + cell(SamplingUniform(seed + 1, 0, 3))];
  }
  ExpectFrequencies(want, positions, kDraws);
  ExpectFrequencies(want, samples, kDraws);
  ExpectFrequencies(want, seeds, kDraws);
}

TEST(SamplingUniformTest, IsBelowOneAndDiffersByEachArgument) {
  std::set<double> values;
  for (uint64_t seed : {0ull, 1ull, 1ull << 40}) {
    for (int64_t sample : {0, 1, 1 << 20}) {
      for (int64_t position : {0, 1, 1 << 20}) {
        const double u = SamplingUniform(seed, sample, position);
        EXPECT_GE(u, 0);
        EXPECT_LT(u, 1);
        EXPECT_EQ(u, SamplingUniform(seed, sample, position));
        values.insert(u);
      }
    }
  }
  EXPECT_EQ(values.size(), 27u);
}

}  // namespace
}  // namespace lockstep::models
