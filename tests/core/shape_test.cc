#include "core/shape.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::MessageOf;
using testing::HasSubstr;

TEST(ShapeTest, SizesStridesAndText) {
  const Shape s = {2, 3, 4};
  EXPECT_EQ(s.ndim(), 3);
  EXPECT_EQ(s.numel(), 24);
  EXPECT_EQ(s[0], 2);
  EXPECT_EQ(s[-1], 4);
  EXPECT_EQ(s.ContiguousStrides(), Shape({12, 4, 1}));
  EXPECT_EQ(StrCat(s), "[2, 3, 4]");
  EXPECT_NE(s, Shape({2, 3}));
  EXPECT_NE(s, Shape({2, 3, 5}));
}

TEST(ShapeTest, ScalarAndEmpty) {
  const Shape scalar;
  EXPECT_EQ(scalar.ndim(), 0);
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(StrCat(scalar), "[]");
  EXPECT_EQ(Shape({0, 5}).numel(), 0);
  EXPECT_EQ(Shape({3, 0, 5}).ContiguousStrides(), Shape({5, 5, 1}));
}

TEST(ShapeTest, ErrorsSayWhat) {
  const Shape s = {2, 3};
  EXPECT_THAT(MessageOf([&] { (void)s[2]; }), HasSubstr("dimension 2 in a tensor with 2 dim"));
  EXPECT_THAT(MessageOf([&] { (void)s[-3]; }), HasSubstr("dimension -3"));
  EXPECT_THAT(MessageOf([] {
                (void)Shape({2, -1}).numel();
              }),
              HasSubstr("negative size in shape [2, -1]"));
  EXPECT_THAT(MessageOf([] { Shape({1, 1, 1, 1, 1, 1, 1, 1, 1}); }), HasSubstr("at most 8"));
  Shape full = {1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_THAT(MessageOf([&] { full.push_back(1); }), HasSubstr("at most 8"));
}

TEST(ShapeTest, OverflowIsAnErrorEvenBesideAZero) {
  constexpr int64_t kBig = int64_t{1} << 40;
  EXPECT_THAT(MessageOf([] { (void)Shape({kBig, kBig}).numel(); }), HasSubstr("too many elements"));
  for (const Shape& s : {Shape({0, kBig, kBig}), Shape({kBig, 0, kBig}), Shape({kBig, kBig, 0})}) {
    EXPECT_THAT(MessageOf([&] { (void)s.numel(); }), HasSubstr("too many elements"));
    EXPECT_THAT(MessageOf([&] { (void)s.ContiguousStrides(); }), HasSubstr("too many elements"));
  }
  EXPECT_EQ(Shape({0, kBig}).numel(), 0);
  EXPECT_EQ(Shape({INT64_MAX, 1}).numel(), INT64_MAX);
}

}  // namespace
}  // namespace lockstep
