// Sums over the ranks of a layer: the ordered ones round once; the library's round at most once for
// each rank and once more, as a ring does, on hosts and, added by the stand-in for NCCL, on
// simulated GPUs.
#include "dist/tensor/partial_sums.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kBatch = 3, kTokens = 16, kWidth = 200;
const Shape kShape{kBatch, kTokens, kWidth};

// Of rank r: f32, of both signs.
std::vector<float> Partials(int rank) {
  const Philox random(7);
  std::vector<float> values(static_cast<size_t>(kShape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(ToUniform(random.At(static_cast<uint64_t>(rank), i))) - 0.5f;
  }
  return values;
}

double UnitRoundoff(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

// Round to nearest of a value as a tensor does it.
double Rounded(double x, DType dtype) {
  return Tensor::FromVector(std::vector{x}, {1}).To(dtype).To(DType::kF64).ToVector<double>()[0];
}

// What a ring makes of an element: each rank rounds its part, adds what the one before sent, and
// rounds.
double RingSum(const std::vector<std::vector<float>>& partials, size_t i, int first, DType dtype) {
  const size_t n = partials.size();
  double sum = 0;
  for (size_t k = 0; k < n; ++k) {
    sum = Rounded(sum + Rounded(partials[(static_cast<size_t>(first) + k) % n][i], dtype), dtype);
  }
  return sum;
}

// Squared errors of all elements, each of which must stay within the bound: the sum of its partial
// sums' sizes, times the unit roundoff, for each of `roundings`.
double SquaredErrors(const std::vector<double>& got,
                     const std::vector<std::vector<float>>& partials, DType dtype,
                     double roundings) {
  double squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double exact = 0, size = 0;
    for (const auto& of_rank : partials) exact += of_rank[i], size += std::abs(of_rank[i]);
    // Each rounding enlarges what the next one rounds; f32 has roundings of its own.
    const double bound = roundings * UnitRoundoff(dtype) * size * 1.05 + 1e-6;
    EXPECT_LE(std::abs(got[i] - exact), bound) << "element " << i;
    squares += (got[i] - exact) * (got[i] - exact);
  }
  return squares;
}

void ExpectSumsWithin(ProcessGroup& group, DType dtype) {
  const int n = group.size(), rank = group.rank();
  std::vector<std::vector<float>> partials;
  for (int r = 0; r < n; ++r) partials.push_back(Partials(r));
  const Tensor mine =
      Tensor::FromVector(partials[static_cast<size_t>(rank)], kShape).To(group.device());
  const int64_t own = kTokens / n;
  const auto doubles = [](const Tensor& x) {
    return x.To(kCpu).To(DType::kF64).Contiguous().ToVector<double>();
  };
  // By whichever the parts of all ranks are brought together.
  const auto errors = [&](const PartialSums& sums, double roundings) {
    const Tensor all = sums.All(mine, dtype), part = sums.Scatter(mine, dtype);
    EXPECT_EQ(part.shape(), Shape({kBatch, own, kWidth}));
    EXPECT_EQ(part.dtype(), dtype);
    EXPECT_EQ(mine.ToVector<float>(), partials[static_cast<size_t>(rank)])
        << "an input was written";
    const std::vector<double> of_all = doubles(all), of_part = doubles(part);
    std::vector<double> scattered = of_all;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i < own * kWidth; ++i) {
        scattered[static_cast<size_t>((b * kTokens + rank * own) * kWidth + i)] =
            of_part[static_cast<size_t>(b * own * kWidth + i)];
      }
    }
    return std::max(SquaredErrors(of_all, partials, dtype, roundings),
                    SquaredErrors(scattered, partials, dtype, roundings));
  };
  std::vector<double> ring(static_cast<size_t>(kShape.numel()));
  for (size_t i = 0; i < ring.size(); ++i) {
    ring[i] = RingSum(partials, i, static_cast<int>(i) % n, dtype);
  }
  const double of_ring = SquaredErrors(ring, partials, dtype, n + 1);
  const auto library = MakeLibrarySums(&group), ordered = MakeOrderedSums(&group);
  EXPECT_EQ(library->TypeOf(dtype), dtype == DType::kBF16 ? dtype : DType::kF32);
  EXPECT_EQ(ordered->TypeOf(dtype), DType::kF32);
  const double of_library = errors(*library, n + 1), once = errors(*ordered, 1);
  EXPECT_GT(once, 0);
  EXPECT_GE(of_library, once);
  EXPECT_LE(of_library, 1.1 * of_ring);
}

TEST(PartialSums, StayWithinTheirRoundingsOnHosts) {
  for (const int size : {2, 4, 8}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      RunInProcess(size, [&](ProcessGroup& group) { ExpectSumsWithin(group, dtype); });
    }
  }
}

TEST(PartialSums, StayWithinTheirRoundingsOnGpus) {
  SKIP_WITHOUT_GPUS(2);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    RunOnGpus(2, [&](ProcessGroup& group) { ExpectSumsWithin(group, dtype); });
  }
}

// In f16 two partial sums beyond its range.
TEST(PartialSums, OfF16MayBeLargerThanTheirSum) {
  RunInProcess(2, [](ProcessGroup& group) {
    const float of_rank = group.rank() == 0 ? 1e5f : -1e5f + 3;
    const Tensor mine = Tensor::Full({1, 4, 2}, of_rank, DType::kF32);
    const Tensor sum = MakeLibrarySums(&group)->All(mine, DType::kF16);
    EXPECT_EQ(sum.dtype(), DType::kF16);
    for (const float x : sum.To(DType::kF32).ToVector<float>()) EXPECT_EQ(x, 3);
  });
}

}  // namespace
}  // namespace lockstep::dist
