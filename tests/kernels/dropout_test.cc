#include "kernels/dropout/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/autograd/engine.h"
#include "core/thread_pool.h"
#include "kernels/cpu/philox.h"
#include "kernels/dropout/dropout_mask.h"

namespace lockstep {
namespace {

constexpr uint64_t kSite = HashName("h.3.attn.dropout");

Tensor Ones(const Shape& shape) { return Tensor::Full(shape, 1, DType::kF32); }

// The mask of a batch of ones: 0 or 1 / (1 - p).
std::vector<float> Mask(const Shape& shape, double p, int64_t first_sample = 0, int64_t step = 0,
                        uint64_t seed = 1, uint64_t site = kSite) {
  StepState state(kCpu, seed);
  state.Begin(step, 0);
  state.SetFirstSample(first_sample);
  const TrainingScope scope(state);
  return ops::Dropout(Ones(shape), p, site).ToVector<float>();
}

TEST(DropoutTest, DoesNothingOutsideOfTrainingAndWithoutProbability) {
  Tensor x = Ones({3, 4});
  x.SetRequiresGrad();
  EXPECT_EQ(ops::Dropout(x, 0.5, kSite).raw_data(), x.raw_data());
  const StepState state(kCpu, 1);
  const TrainingScope scope(state);
  EXPECT_EQ(ops::Dropout(x, 0, kSite).raw_data(), x.raw_data());
  EXPECT_NE(ops::Dropout(x, 0.5, kSite).raw_data(), x.raw_data());
}

TEST(DropoutTest, KeepsTheRightShare) {
  for (const double p : {0.1, 0.2, 0.5, 0.9}) {
    constexpr double kN = 16 * 4096;
    double kept = 0;
    for (const float v : Mask({16, 4096}, p)) {
      EXPECT_TRUE(v == 0 || v == static_cast<float>(1 / (1 - p))) << v;
      kept += v != 0;
    }
    EXPECT_NEAR(kept / kN, 1 - p, 5 * std::sqrt(p * (1 - p) / kN)) << "p = " << p;
  }
}

// Neighbours, rows, sites, steps and seeds agree as often as by chance.
TEST(DropoutTest, MasksAreIndependent) {
  const Shape shape = {8, 8192};
  const std::vector<float> mask = Mask(shape, 0.5);
  const auto agreement = [&](const std::vector<float>& other, size_t shift) {
    double equal = 0;
    for (size_t i = 0; i + shift < mask.size(); ++i) equal += mask[i + shift] == other[i];
    return equal / static_cast<double>(mask.size() - shift);
  };
  const double limit = 5 * 0.5 / std::sqrt(8.0 * 8192);
  for (const size_t shift : {1, 2, 3, 4, 8, 256, 8192}) {
    EXPECT_NEAR(agreement(mask, shift), 0.5, limit) << "shift " << shift;
  }
  EXPECT_NEAR(agreement(Mask(shape, 0.5, 0, 1), 0), 0.5, limit) << "next step";
  EXPECT_NEAR(agreement(Mask(shape, 0.5, 0, 0, 2), 0), 0.5, limit) << "next seed";
  EXPECT_NEAR(agreement(Mask(shape, 0.5, 0, 0, 1, kSite + 1), 0), 0.5, limit) << "next site";
}

// Also where a sample's elements do not fill the generator's blocks of four.
TEST(DropoutTest, TheMaskDoesNotDependOnMicroBatches) {
  for (const int64_t inner : {1, 3, 7 * 5, 1031}) {
    const std::vector<float> whole = Mask({8, inner}, 0.5, 16);
    for (const int64_t size : {1, 2, 4}) {
      std::vector<float> parts;
      for (int64_t first = 0; first < 8; first += size) {
        const std::vector<float> part = Mask({size, inner}, 0.5, 16 + first);
        parts.insert(parts.end(), part.begin(), part.end());
      }
      EXPECT_EQ(parts, whole) << inner << " elements per sample, micro-batches of " << size;
    }
  }
}

TEST(DropoutTest, TheMaskDoesNotDependOnThreads) {
  const int threads = NumThreads();
  SetNumThreads(1);
  const std::vector<float> one = Mask({3, 40'001}, 0.3);
  SetNumThreads(3);
  EXPECT_EQ(Mask({3, 40'001}, 0.3), one);
  SetNumThreads(threads);
}

// Backward runs after the state has moved on to the next micro-batch, and to the next step.
TEST(DropoutTest, BackwardHasTheMaskOfItsForward) {
  StepState state(kCpu, 5);
  state.Begin(3, 0);
  const TrainingScope scope(state);
  std::vector<Tensor> x, y;
  for (int64_t micro = 0; micro < 2; ++micro) {
    state.SetFirstSample(4 * micro);
    x.push_back(Ones({4, 33}).SetRequiresGrad());
    y.push_back(ops::Dropout(x.back(), 0.4, kSite));
  }
  state.Begin(4, 0);
  for (int i = 0; i < 2; ++i) {
    Backward(y[i], Ones({4, 33}));
    EXPECT_EQ(x[i].grad().ToVector<float>(), y[i].ToVector<float>());
  }
  EXPECT_NE(y[0].ToVector<float>(), y[1].ToVector<float>());
}

TEST(DropoutTest, StreamsOfStepsAndSitesDiffer) {
  std::set<uint64_t> streams;
  for (int64_t step = 0; step < 1000; ++step) {
    for (uint64_t site = 0; site < 100; ++site) streams.insert(StepStream(site, step));
  }
  EXPECT_EQ(streams.size(), 100'000u);
}

TEST(DropoutTest, BatchedPhiloxIsPhilox) {
  const Philox philox(0x123456789abcdefull);
  for (const uint64_t begin : {uint64_t{0}, uint64_t{3}, uint64_t{254}, (uint64_t{1} << 34) - 6}) {
    std::vector<uint32_t> got;
    cpu::ForEachRandom(philox, 77, begin, 1001, [&](int64_t i, int64_t n, const uint32_t* random) {
      EXPECT_EQ(i, std::ssize(got));
      got.insert(got.end(), random, random + n);
    });
    ASSERT_EQ(got.size(), 1001u);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], philox.At(77, begin + i)) << i;
  }
}

}  // namespace
}  // namespace lockstep
