#include "dist/fingerprint.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/thread_pool.h"
#include "kernels/creation/creation.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kRows = 37, kCols = 24;

Tensor Values(DType dtype = DType::kF32) { return ops::Rand({kRows, kCols}, /*seed=*/1).To(dtype); }

TEST(Fingerprint, PartsAddUpHoweverTheyAreCut) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const Tensor x = Values(dtype).View({kRows * kCols});
    const uint64_t whole = Fingerprint(x);
    for (const int64_t cut : {int64_t{0}, int64_t{1}, int64_t{333}, kRows * kCols}) {
      EXPECT_EQ(Fingerprint(x.Slice(0, 0, cut)) + Fingerprint(x.Slice(0, cut, x.numel()), cut),
                whole);
    }
  }
}

TEST(Fingerprint, PartsOfAParameterAddUp) {
  const Tensor x = Values();
  for (const int dim : {0, 1}) {
    uint64_t sum = 0;
    for (int64_t part = 0; part < 2; ++part) {
      Parameter p({kRows, kCols}, {}, true);
      ShardCut cut{.axis = "tp", .dim = dim, .parts = 2, .part = part};
      if (dim == 0) cut.part_size = 19;  // of 37 rows
      p.SetLayout({.cuts = {cut}});
      const Tensor own = p.PartOf(x).Contiguous();
      const int64_t middle = own.numel() / 3;
      sum += Fingerprint(p, own, 0, middle) + Fingerprint(p, own, middle, own.numel());
    }
    EXPECT_EQ(sum, Fingerprint(x)) << dim;
  }
}

TEST(Fingerprint, AnyElementCounts) {
  const uint64_t whole = Fingerprint(Values());
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    const Tensor other = Values();
    other.data<float>()[i] = std::nextafter(other.data<float>()[i], 2.0f);
    EXPECT_NE(Fingerprint(other), whole) << i;
  }
}

// Elements that change places, and a zero's sign.
TEST(Fingerprint, PlacesAndSignsCount) {
  const Tensor x = Values();
  std::swap(x.data<float>()[3], x.data<float>()[700]);
  EXPECT_NE(Fingerprint(x), Fingerprint(Values()));
  EXPECT_NE(Fingerprint(Tensor::Full({1}, -0.0, DType::kF32)),
            Fingerprint(Tensor::Full({1}, 0.0, DType::kF32)));
  EXPECT_NE(Fingerprint(Tensor::Zeros({8}, DType::kF32)),
            Fingerprint(Tensor::Zeros({9}, DType::kF32)));
  EXPECT_EQ(Fingerprint(Tensor::Zeros({0}, DType::kF32)), 0u);
}

TEST(Fingerprint, DoesNotDependOnThreads) {
  const Tensor x = ops::Rand({1 << 19}, /*seed=*/2);
  const int before = NumThreads();
  SetNumThreads(1);
  const uint64_t one = Fingerprint(x);
  SetNumThreads(4);
  EXPECT_EQ(Fingerprint(x), one);
  SetNumThreads(before);
}

}  // namespace
}  // namespace lockstep::dist
