#include "core/tensor.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "core/autograd/engine.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::MessageOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Tensor Iota(const Shape& shape, DType dtype = DType::kF32) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::FromVector(values, shape).To(dtype);
}

// ---- Makers ----

TEST(TensorTest, MakersAndDescription) {
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(Tensor().Describe(), "undefined tensor");
  const Tensor x = Tensor::Full({2, 3}, 1.5, DType::kBF16);
  EXPECT_EQ(x.Describe(), "bf16[2, 3] on cpu");
  EXPECT_EQ(x.numel(), 6);
  EXPECT_EQ(x.bytes(), 12);
  EXPECT_EQ(x.dim(-1), 3);
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_THAT(x.To(DType::kF32).ToVector<float>(), testing::Each(1.5f));
  EXPECT_THAT(Tensor::Zeros({3}, DType::kI64).ToVector<int64_t>(), ElementsAre(0, 0, 0));
  const std::vector<bool> mask = {true, false, true};
  EXPECT_EQ(Tensor::FromVector(mask, {3}).ToVector<bool>(), mask);
  EXPECT_EQ(Tensor::Full({}, 7, DType::kU8).Item(), 7);
  EXPECT_EQ(Tensor::Full({}, 1, DType::kBool).Item(), 1);
}

// Braces of ones and zeros are no bools: their type is to be named.
template <class... T>
concept MakesATensorOfBraces = requires {
  Tensor::FromVector({T{}...}, Shape());
};
static_assert(!MakesATensorOfBraces<int, int>);

TEST(TensorTest, EmptyTensors) {
  const Tensor x = Tensor::Zeros({0, 3}, DType::kF32);
  EXPECT_EQ(x.numel(), 0);
  EXPECT_THAT(x.ToVector<float>(), IsEmpty());
  EXPECT_THAT(x.Transpose(0, 1).Clone().ToVector<float>(), IsEmpty());
  EXPECT_TRUE(x.Transpose(0, 1).is_contiguous());
  EXPECT_EQ(x.View({3, 0, 7}).shape(), Shape({3, 0, 7}));
}

TEST(TensorTest, WrongSizesAndTypesAreNamed) {
  EXPECT_THAT(MessageOf([] {
                Tensor::FromVector<float>({1, 2, 3}, {2});
              }),
              HasSubstr("shape [2] and dtype f32 has 8 bytes, got 12"));
  const Tensor x = Tensor::Zeros({2}, DType::kF32);
  EXPECT_THAT(MessageOf([&] { x.data<double>(); }), HasSubstr("data<f64>() of a tensor of f32"));
  EXPECT_THAT(MessageOf([&] { x.ToVector<int32_t>(); }), HasSubstr("ToVector<i32>()"));
  EXPECT_THAT(MessageOf([&] { x.Item(); }), HasSubstr("one element, got f32[2] on cpu"));
  EXPECT_THAT(MessageOf([] { Tensor().raw_data(); }), HasSubstr("undefined"));
  EXPECT_THAT(MessageOf([] { Tensor::Empty({int64_t{1} << 61}, DType::kF64); }),
              HasSubstr("too large"));
  EXPECT_THAT(MessageOf([] { Tensor::Empty({-1}, DType::kF64); }), HasSubstr("negative size"));
}

TEST(TensorTest, AnUndefinedTensorSaysThatItIs) {
  Tensor moved = Iota({2});
  const Tensor taker = std::move(moved);
  for (const Tensor& x : {Tensor(), moved}) {  // NOLINT(bugprone-use-after-move): meant
    for (const auto& use : std::vector<std::function<void()>>{
             [&] { x.device(); }, [&] { x.raw_data(); }, [&] { x.storage().data(); },
             [&] { x.To(kCpu); }, [&] { x.Clone(); }, [&] { x.Fill(1); },
             [&] { x.ToVector<float>(); }}) {
      EXPECT_THAT(MessageOf(use), HasSubstr("this tensor is undefined and has neither"));
    }
  }
}

TEST(TensorTest, FromStorageChecksThatItFits) {
  const Tensor x = Iota({6});
  EXPECT_THAT(Tensor::FromStorage(x.storage(), DType::kF32, {2, 2}, 2).ToVector<float>(),
              ElementsAre(2, 3, 4, 5));
  const auto at = [&](const Shape& shape, int64_t offset) {
    return MessageOf([&] { Tensor::FromStorage(x.storage(), DType::kF32, shape, offset); });
  };
  EXPECT_EQ(at({6}, 0), "no error");
  EXPECT_EQ(at({0}, 6), "no error");
  EXPECT_THAT(at({6}, 1), HasSubstr("f32[6] at element 1 does not fit into a storage of 24 bytes"));
  EXPECT_THAT(at({1}, -1), HasSubstr("does not fit"));
  EXPECT_THAT(at({0}, 7), HasSubstr("does not fit"));
  EXPECT_THAT(at({1}, INT64_MAX), HasSubstr("does not fit"));
  EXPECT_THAT(at({int64_t{1} << 62}, 1), HasSubstr("does not fit"));
}

// ---- Copies ----

TEST(CopyTest, ContiguousIsItselfOrAClone) {
  const Tensor x = Iota({2, 3});
  EXPECT_EQ(x.Contiguous().raw_data(), x.raw_data());
  const Tensor t = x.Transpose(0, 1);
  EXPECT_NE(t.Contiguous().raw_data(), x.raw_data());
  EXPECT_TRUE(t.Contiguous().is_contiguous());
  EXPECT_EQ(x.To(DType::kF32).raw_data(), x.raw_data());
  EXPECT_EQ(x.To(kCpu).raw_data(), x.raw_data());
  EXPECT_NE(x.Clone().raw_data(), x.raw_data());
}

TEST(CopyTest, ConvertsAndChecksShapes) {
  const Tensor x = Tensor::FromVector<double>({1.5, -2.25, 65520, 1e-9}, {4});
  EXPECT_THAT(x.To(DType::kI32).ToVector<int32_t>(), ElementsAre(1, -2, 65520, 0));
  EXPECT_THAT(x.To(DType::kBF16).To(DType::kF32).ToVector<float>(),
              ElementsAre(1.5f, -2.25f, 65536.0f, float(BF16(1e-9f))));
  EXPECT_TRUE(std::isinf(static_cast<float>(x.To(DType::kF16).data<F16>()[2])));
  EXPECT_THAT(MessageOf([&] { x.CopyFrom(Iota({5})); }),
              HasSubstr("copy of f32[5] on cpu into f64[4] on cpu: the shapes differ"));
  EXPECT_THAT(MessageOf([&] { x.CopyFrom(Tensor()); }), HasSubstr("undefined tensor"));
}

TEST(CopyTest, WritesCountAsVersions) {
  const Tensor x = Iota({4});
  const uint64_t version = x.storage().version();
  x.Slice(0, 0, 1).Fill(1);
  EXPECT_EQ(x.storage().version(), version + 1);
  x.CopyFrom(Iota({4}));
  EXPECT_EQ(x.storage().version(), version + 2);
}

// Whether a copy is made depends on layout, dtype and device; the flow of gradients must not.
TEST(CopyTest, CopiesOfATrackedTensorDifferentiate) {
  Tensor x = Iota({2, 3});
  x.SetRequiresGrad();
  Tensor turned = Iota({3, 2}).Transpose(0, 1);
  turned.SetRequiresGrad();
  const Tensor grad = Iota({2, 3});
  const std::vector<float> want = grad.ToVector<float>();
  for (const auto& copy : std::vector<std::function<Tensor(const Tensor&)>>{
           [](const Tensor& t) { return t.Contiguous(); },
           [](const Tensor& t) { return t.Clone(); }, [](const Tensor& t) { return t.To(kCpu); },
           [](const Tensor& t) { return t.To(t.dtype()); },
           [](const Tensor& t) { return t.To(DType::kF64).To(DType::kF32); }}) {
    for (const Tensor& t : {x, turned}) {
      t.ZeroGrad();
      const Tensor y = copy(t);
      ASSERT_TRUE(y.requires_grad());
      EXPECT_EQ(y.ToVector<float>(), t.ToVector<float>());
      Backward(y, grad);
      EXPECT_EQ(t.grad().ToVector<float>(), want);
      EXPECT_EQ(t.grad().dtype(), DType::kF32);
    }
  }
  EXPECT_FALSE(x.To(DType::kI32).requires_grad()) << "integers have no gradient";
  const NoGrad no_grad;
  EXPECT_FALSE(x.Clone().requires_grad());
}

TEST(CopyTest, ATargetThatHasOneElementAtSeveralPlacesIsRefused) {
  const Tensor row = Iota({3});
  const Tensor target = row.Expand({2, 3});
  EXPECT_THAT(MessageOf([&] {
                target.CopyFrom(Iota({2, 3}));
              }),
              HasSubstr("copy into f32[2, 3] on cpu, whose strides are [0, 1]: an expanded tensor "
                        "has several elements at one place; copy into its Clone()"));
  EXPECT_THAT(MessageOf([&] {
                target.Slice(0, 0, 2).Transpose(0, 1).CopyFrom(Iota({3, 2}));
              }),
              HasSubstr("an expanded tensor"));
  EXPECT_THAT(row.ToVector<float>(), ElementsAre(0, 1, 2));
  target.Slice(0, 0, 1).CopyFrom(Tensor::Full({1, 3}, 5, DType::kF32));  // one row is no repetition
  EXPECT_THAT(row.ToVector<float>(), ElementsAre(5, 5, 5));
  target.Fill(7);
  EXPECT_THAT(row.ToVector<float>(), ElementsAre(7, 7, 7));
}

// The result is as if the source were read before anything is written.
TEST(CopyTest, SourceAndTargetMayOverlap) {
  for (const int64_t n : {5, 70'001}) {  // in one chunk and in many
    const Tensor up = Iota({n}, DType::kI64), down = Iota({n}, DType::kI64);
    up.Slice(0, 1, n).CopyFrom(up.Slice(0, 0, n - 1));
    down.Slice(0, 0, n - 1).CopyFrom(down.Slice(0, 1, n));
    const auto shifted_up = up.ToVector<int64_t>(), shifted_down = down.ToVector<int64_t>();
    for (int64_t i = 1; i < n; ++i) {
      ASSERT_EQ(shifted_up[static_cast<size_t>(i)], i - 1);
      ASSERT_EQ(shifted_down[static_cast<size_t>(i - 1)], i);
    }
  }
  const Tensor square = Iota({3, 3});
  square.CopyFrom(square.Transpose(0, 1));
  EXPECT_THAT(square.ToVector<float>(), ElementsAre(0, 3, 6, 1, 4, 7, 2, 5, 8));
  const Tensor columns = Iota({2, 4});
  columns.Slice(1, 0, 2).CopyFrom(columns.Slice(1, 2, 4));  // interleaved, not overlapping
  EXPECT_THAT(columns.ToVector<float>(), ElementsAre(2, 3, 2, 3, 6, 7, 6, 7));
  columns.CopyFrom(columns);
  EXPECT_THAT(columns.ToVector<float>(), ElementsAre(2, 3, 2, 3, 6, 7, 6, 7));
}

TEST(CopyTest, EightBitFloatsAreFilledAndCopied) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    const Tensor x = Tensor::Full({2, 3}, 1.75, dtype);
    EXPECT_EQ(x.To(DType::kF32).ToVector<float>(), std::vector<float>(6, 1.75f));
    EXPECT_EQ(x.Transpose(0, 1).Clone().To(DType::kF64).ToVector<double>(),
              std::vector<double>(6, 1.75));
    EXPECT_EQ(Tensor::Zeros({}, dtype).Item(), 0);
    EXPECT_EQ(Tensor::Full({}, -3.4, DType::kBF16).To(dtype).Item(), -3.5);
  }
}

// ---- Meta ----

TEST(MetaTest, HasShapesWithoutBytes) {
  const Tensor x = Tensor::Zeros({int64_t{1} << 40, 3}, DType::kF32, kMeta);
  EXPECT_EQ(x.Describe(), "f32[1099511627776, 3] on meta");
  EXPECT_EQ(x.raw_data(), nullptr);
  EXPECT_EQ(x.Slice(0, 0, 2).View({3, 2}).shape(), Shape({3, 2}));
  x.Fill(3);
  x.CopyFrom(x.Clone());
  EXPECT_EQ(Iota({2}).To(kMeta).Describe(), "f32[2] on meta");
  EXPECT_EQ(x.To(DType::kBF16).dtype(), DType::kBF16);
  EXPECT_THAT(MessageOf([&] { x.Slice(0, 0, 1).To(kCpu); }), HasSubstr("meta device has no bytes"));
  EXPECT_THAT(MessageOf([] { Tensor::Zeros({1}, DType::kF32, kMeta).Item(); }),
              HasSubstr("no bytes"));
}

}  // namespace
}  // namespace lockstep
