// The views of Tensor: which elements they show, and where their gradients go.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

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

Tensor Iota(const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::FromVector(values, shape);
}

TEST(ViewTest, ShareBytes) {
  const Tensor x = Iota({2, 3});
  const Tensor row = x.Slice(0, 1, 2), column = x.Slice(1, 1, 2);
  EXPECT_THAT(row.ToVector<float>(), ElementsAre(3, 4, 5));
  EXPECT_THAT(column.ToVector<float>(), ElementsAre(1, 4));
  EXPECT_TRUE(row.is_contiguous());
  EXPECT_FALSE(column.is_contiguous());
  EXPECT_THAT(x.Transpose(0, -1).ToVector<float>(), ElementsAre(0, 3, 1, 4, 2, 5));
  column.Fill(-1);
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(0, -1, 2, 3, -1, 5));
  row.View({3, 1}).CopyFrom(Tensor::FromVector<int32_t>({7, 8, 9}, {3, 1}));
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(0, -1, 2, 7, 8, 9));
}

TEST(ViewTest, ViewInfersOneSize) {
  const Tensor x = Iota({2, 6});
  EXPECT_EQ(x.View({3, -1}).shape(), Shape({3, 4}));
  EXPECT_EQ(x.View({-1}).shape(), Shape({12}));
  EXPECT_EQ(Tensor::Zeros({0}, DType::kF32).View({-1, 5}).shape(), Shape({0, 5}));
  EXPECT_EQ(Tensor::Zeros({1}, DType::kF32).View({}).ndim(), 0);
}

TEST(ViewTest, ErrorsNameTheFix) {
  const Tensor x = Iota({2, 3});
  EXPECT_THAT(MessageOf([&] { x.View({4}); }), HasSubstr("the numbers of elements differ"));
  EXPECT_THAT(MessageOf([&] { x.View({-1, -1}); }), HasSubstr("only one size may be -1"));
  EXPECT_THAT(MessageOf([&] { x.View({4, -1}); }), HasSubstr("no size fits in place of -1"));
  EXPECT_THAT(MessageOf([&] { x.View({0, -1}); }), HasSubstr("no size fits"));
  EXPECT_THAT(MessageOf([&] { x.View({-2, -3}); }), HasSubstr("sizes must not be negative"));
  EXPECT_THAT(MessageOf([&] {
                x.View({int64_t{1} << 40, int64_t{1} << 40, -1});
              }),
              HasSubstr("63 bits"));
  EXPECT_THAT(MessageOf([&] { x.Transpose(0, 1).View({6}); }), HasSubstr("use Reshape"));
  EXPECT_THAT(
      MessageOf([&] { x.Slice(0, 1, 3); }),
      HasSubstr("Slice [1, 3) does not lie within dimension 0 of a tensor of shape [2, 3]"));
  EXPECT_THAT(MessageOf([&] { x.Slice(2, 0, 1); }), HasSubstr("Slice: there is no dimension 2"));
  EXPECT_THAT(MessageOf([&] { x.Expand({3}); }), HasSubstr("cannot expand [2, 3] to [3]"));
  EXPECT_THAT(MessageOf([&] { x.Expand({4, 3}); }), HasSubstr("cannot expand"));
  EXPECT_THAT(MessageOf([&] { x.Slice(1, 2, 1); }), HasSubstr("Slice [2, 1) does not lie within"));
  EXPECT_THAT(MessageOf([&] { x.Slice(1, -4, 1); }), HasSubstr("Slice [-4, 1) does not lie"));
  EXPECT_THAT(MessageOf([&] { x.Permute({0}); }),
              HasSubstr("Permute: 1 dimensions of a tensor of shape [2, 3]"));
  EXPECT_THAT(MessageOf([&] { x.Permute({1, -1}); }), HasSubstr("dimension -1 is given twice"));
  EXPECT_THAT(MessageOf([&] { x.Squeeze(0); }), HasSubstr("dimension 0 of a tensor of shape"));
  EXPECT_THAT(MessageOf([&] { x.Unsqueeze(3); }), HasSubstr("Unsqueeze: there is no dimension 3"));
  EXPECT_THAT(MessageOf([&] {
                x.Split(std::vector<int64_t>{1, 1}, 1);
              }),
              HasSubstr("Split: the sizes add up to 2, but dimension 1 of a tensor of shape [2, 3] "
                        "has 3"));
  EXPECT_THAT(MessageOf([&] {
                x.Split(std::vector<int64_t>{2, 2}, 1);
              }),
              HasSubstr("Split: the sizes must not be negative and add up to 3"));
  EXPECT_THAT(MessageOf([&] { x.Chunk(2, 1); }), HasSubstr("does not divide into 2 equal parts"));
  EXPECT_THAT(MessageOf([&] { x.Transpose(0, 1).Reshape({4}); }), HasSubstr("Reshape([4]) of"));
  EXPECT_THAT(MessageOf([&] { InverseOrder({1, -2}); }), HasSubstr("not an order"));
  for (const auto& use : std::vector<std::function<void()>>{
           [] { Tensor().View({0}); }, [] { Tensor().Transpose(0, 1); },
           [] { Tensor().Expand({2}); }, [] { Tensor().Slice(0, 0, 0); }}) {
    EXPECT_THAT(MessageOf(use), HasSubstr("this tensor is undefined"));
  }
}

TEST(ViewTest, Expand) {
  const Tensor x = Iota({2, 1});
  const Tensor y = x.Expand({3, 2, 2});
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_FALSE(y.is_contiguous());
  EXPECT_EQ(y.raw_data(), x.raw_data());
  EXPECT_THAT(Tensor::Full({}, 3, DType::kF32).Expand({2}).ToVector<float>(), ElementsAre(3, 3));
}

TEST(ViewTest, WritesDoNotLoseAGradient) {
  Tensor x = Iota({2, 3});
  x.SetRequiresGrad();
  EXPECT_THAT(MessageOf([&] { x.Fill(0); }), HasSubstr("Detach() first"));
  EXPECT_THAT(MessageOf([&] { x.Slice(0, 0, 1).Fill(0); }), HasSubstr("Detach() first"));
  EXPECT_THAT(MessageOf([&] { Iota({2, 3}).CopyFrom(x); }), HasSubstr("Detach() first"));
  EXPECT_THAT(MessageOf([&] { Iota({6}).CopyFrom(x.View({6})); }), HasSubstr("Detach() first"));
  EXPECT_EQ(x.Detach().View({6}).raw_data(), x.raw_data());
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
  const NoGrad no_grad;
  EXPECT_FALSE(x.View({6}).requires_grad());
  x.Fill(1);
}

TEST(ViewTest, ReshapeCopiesOnlyWhereItMust) {
  const Tensor x = Iota({2, 3});
  EXPECT_EQ(x.Reshape({3, 2}).raw_data(), x.raw_data());
  EXPECT_THAT(x.Transpose(0, 1).Reshape({-1}).ToVector<float>(), ElementsAre(0, 3, 1, 4, 2, 5));
}

// Parts that nobody uses, parts used twice, and a gradient that is there already.
TEST(ViewTest, GradientsOfPartsMeetInTheirTensor) {
  Tensor x = Iota({7});
  x.SetRequiresGrad();
  const std::vector<Tensor> parts = x.Split({3, 2, 2}, 0);
  const Tensor two = Tensor::Full({2}, 2, DType::kF32);
  Backward(std::vector{parts[1], x.Slice(0, 4, 6)}, std::vector{two, two});
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(0, 0, 0, 2, 4, 2, 0));
  Backward(x.Slice(0, -2, 7), two);
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(0, 0, 0, 2, 4, 4, 2));
}

// The source element of output coordinates c.
using Source = std::function<Shape(Shape c)>;

struct Step {
  Tensor view;
  Source source;
};

Step RandomStep(const Tensor& x, std::mt19937& random) {
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const int d = static_cast<int>(draw(x.ndim())), e = static_cast<int>(draw(x.ndim()));
  switch (draw(6)) {
    case 0: {
      const int64_t begin = draw(x.dim(d)), end = begin + 1 + draw(x.dim(d) - begin);
      const bool from_end = draw(2) == 1 && begin > 0;
      const Tensor part = draw(2) == 1 ? x.Split({begin, end - begin, x.dim(d) - end}, d)[1]
                          : from_end   ? x.Slice(d - x.ndim(), begin - x.dim(d), end)
                                       : x.Slice(d, begin, end);
      return {part, [=](Shape c) { return c[d] += begin, c; }};
    }
    case 1:
      return {x.Transpose(d, e), [=](Shape c) { return std::swap(c[d], c[e]), c; }};
    case 2: {
      std::vector<int> order(x.ndim());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      return {x.Permute(order), [=](const Shape& c) {
                Shape from = c;
                for (int i = 0; i < c.ndim(); ++i) from[order[i]] = c[i];
                return from;
              }};
    }
    case 3:
      if (x.dim(d) == 1 && x.ndim() > 1) {
        return {x.Squeeze(d), [=](const Shape& c) {
                  Shape from;
                  for (int i = 0; i <= c.ndim(); ++i) from.push_back(i == d ? 0 : c[i - (i > d)]);
                  return from;
                }};
      }
      return {x.Unsqueeze(d), [=](const Shape& c) {
                Shape from;
                for (int i = 0; i < c.ndim(); ++i) {
                  if (i != d) from.push_back(c[i]);
                }
                return from;
              }};
    case 4: {
      const Shape from = x.shape();
      return {x.Reshape({x.dim(0), -1}), [=](const Shape& c) {
                int64_t rest = c[1];
                Shape source = from;
                for (int i = from.ndim(); --i > 0; rest /= from[i]) source[i] = rest % from[i];
                return source[0] = c[0], source;
              }};
    }
    default: {
      Shape to{2};
      for (int64_t size : x.shape()) to.push_back(size == 1 ? 3 : size);
      return {x.Expand(to), [from = x.shape()](const Shape& c) {
                Shape source = from;
                for (int i = 0; i < from.ndim(); ++i) source[i] = from[i] == 1 ? 0 : c[i + 1];
                return source;
              }};
    }
  }
}

// Elements and gradients of chains of random views against an index calculation: an element is the
// index of where it came from, and its gradient arrives there.
TEST(ViewTest, RandomChainsOfViews) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const auto size = [&] { return static_cast<int64_t>(1 + random() % 4); };
    Tensor base = Iota({size(), size(), size()});
    base.SetRequiresGrad();
    Tensor x = base;
    std::vector<float> want = x.ToVector<float>();
    for (int step = 0; step < 6 && x.ndim() < 6; ++step) {
      const Shape rows = x.shape().ContiguousStrides();
      const auto [view, source] = RandomStep(x, random);
      std::vector<float> next(static_cast<size_t>(view.numel()));
      for (int64_t i = 0; i < view.numel(); ++i) {
        Shape c = view.shape();
        int64_t rest = i;
        for (int d = c.ndim(); d-- > 0; rest /= view.dim(d)) c[d] = rest % view.dim(d);
        const Shape from = source(c);
        int64_t at = 0;
        for (int d = 0; d < from.ndim(); ++d) at += from[d] * rows[d];
        next[i] = want[at];
      }
      x = view;
      want = next;
      ASSERT_EQ(x.ToVector<float>(), want) << "round " << round << ", step " << step;
      const Tensor target = Tensor::Zeros(x.shape(), DType::kF64);
      target.CopyFrom(x.Detach());
      ASSERT_EQ(target.To(DType::kF32).ToVector<float>(), want);
    }
    std::vector<float> gradient(static_cast<size_t>(base.numel()));
    for (size_t i = 0; i < want.size(); ++i) gradient[want[i]] += static_cast<float>(i);
    Backward(x, Iota(x.shape()));
    ASSERT_EQ(base.grad().ToVector<float>(), gradient) << "round " << round;
  }
}

}  // namespace
}  // namespace lockstep
