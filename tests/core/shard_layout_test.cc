#include "core/shard_layout.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "core/parameter.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::MessageOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The indices along a dimension of the whole that a part has.
std::vector<int64_t> Indices(const ShardLayout& layout, int dim, int64_t size) {
  std::vector<int64_t> indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  for (const ShardCut& cut : layout.cuts) {
    if (cut.dim != dim) continue;
    std::vector<int64_t> own;
    auto begin = indices.begin();
    for (int64_t n : cut.segments.empty() ? std::vector{std::ssize(indices)} : cut.segments) {
      const int64_t most = cut.part_size > 0 ? cut.part_size : n / cut.parts;
      own.insert(own.end(), begin + cut.part * most, begin + std::min(n, (cut.part + 1) * most));
      begin += n;
    }
    indices = own;
  }
  return indices;
}

// The elements of the whole that a part has, in its order.
std::vector<int64_t> Elements(const ShardLayout& layout, const Shape& whole) {
  std::vector<int64_t> elements = {0};
  for (int dim = 0; dim < whole.ndim(); ++dim) {
    std::vector<int64_t> next;
    for (int64_t outer : elements) {
      for (int64_t i : Indices(layout, dim, whole[dim])) next.push_back(outer * whole[dim] + i);
    }
    elements = next;
  }
  if (layout.range) {
    elements = {elements.begin() + layout.range->begin, elements.begin() + layout.range->end};
  }
  return elements;
}

// Element i of every parameter is i + its seed.
const Initializer kIota = [](std::span<float> values, int64_t first, uint64_t seed,
                             const std::string&) {
  std::iota(values.begin(), values.end(), static_cast<float>(first) + static_cast<float>(seed));
};

void ExpectRunsAre(const std::vector<int64_t>& want, const ShardLayout& layout,
                   const Shape& whole) {
  layout.Check(whole);
  ASSERT_EQ(layout.PartShape(whole).numel(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size();) {
    const auto [first, count] = layout.RunAt(whole, static_cast<int64_t>(i));
    ASSERT_GE(count, 1);
    const size_t end = std::min(want.size(), i + static_cast<size_t>(count));
    for (size_t k = i; k < end; ++k) {
      ASSERT_EQ(first + static_cast<int64_t>(k - i), want[k]) << "element " << k << " of " << whole;
    }
    // From the middle of a run as from its start.
    const auto middle = layout.RunAt(whole, static_cast<int64_t>(end - 1));
    ASSERT_EQ(middle.first, want[end - 1]);
    i = end;
  }
}

TEST(ShardLayoutTest, ByDefaultThePartIsTheWhole) {
  const ShardLayout layout;
  EXPECT_EQ(layout.PartShape({3, 5}), Shape({3, 5}));
  const auto run = layout.RunAt({3, 5}, 4);
  EXPECT_EQ(run.first, 4);
  EXPECT_EQ(run.count, 11);
}

// Rows of queries, keys and values: with one query head more than key heads.
TEST(ShardLayoutTest, EachSegmentIsCut) {
  const ShardLayout layout{.cuts = {{.axis = "tp", .parts = 2, .part = 1, .segments = {4, 2, 2}}}};
  EXPECT_EQ(layout.PartShape({8, 3}), Shape({4, 3}));
  EXPECT_THAT(Elements(layout, {8, 1}), ElementsAre(2, 3, 5, 7));
  ExpectRunsAre(Elements(layout, {8, 3}), layout, {8, 3});
  EXPECT_EQ(layout.RunAt({8, 3}, 1).count, 5) << "the two rows of queries";
}

TEST(ShardLayoutTest, RandomLayoutsShareOutEveryElementOnce) {
  std::mt19937 random(3);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    const int64_t parts[] = {1 + draw(3), 1 + draw(3)};
    Shape whole;
    for (int d = 0; d < 3; ++d) whole.push_back(parts[0] * parts[1] * draw(5));
    const int dims[] = {static_cast<int>(draw(3)), static_cast<int>(draw(3))};
    std::vector<int> count(static_cast<size_t>(whole.numel()));
    for (int64_t rank = 0; rank < parts[0] * parts[1]; ++rank) {
      const int64_t part[] = {rank % parts[0], rank / parts[0]};
      ShardLayout layout;
      const bool twice = dims[0] == dims[1] && round % 3 == 0;
      for (int a = 0; a < 1 + (dims[0] != dims[1] || twice); ++a) {
        layout.cuts.push_back(
            {.axis = StrCat(a), .dim = dims[a], .parts = parts[a], .part = part[a]});
        if (round % 2 == 0 || (a == 1 && twice)) continue;
        const int64_t first = whole[dims[a]] / parts[a] / 2 * parts[a];
        layout.cuts.back().segments = {first, whole[dims[a]] - first, 0};
      }
      if (layout.cuts.size() == 1) {  // the other axis has ranges, the last of which is shorter
        const int64_t numel = layout.PartShape(whole).numel();
        const int64_t share = (numel + parts[1] - 1) / parts[1];
        layout.range = {"range", std::min(part[1] * share, numel),
                        std::min((part[1] + 1) * share, numel)};
      }
      const std::vector<int64_t> elements = Elements(layout, whole);
      ExpectRunsAre(elements, layout, whole);
      for (int64_t e : elements) ++count[static_cast<size_t>(e)];
    }
    EXPECT_THAT(count, testing::Each(1));
  }
}

TEST(ShardLayoutTest, ACutIntoOnePartDoesNotBreakRuns) {
  const ShardLayout layout{.cuts = {{.axis = "tp", .dim = 1, .segments = {2, 3}}}};
  EXPECT_EQ(layout.RunAt({4, 5}, 3).count, 17);
}

TEST(ShardLayoutTest, TheLastPartMayHaveLess) {
  const Shape whole{7, 4};
  std::vector<int> count(28);
  for (int64_t part = 0; part < 3; ++part) {
    const ShardLayout layout{.cuts = {{.axis = "tp", .parts = 3, .part = part, .part_size = 3},
                                      {.axis = "ep", .dim = 1, .parts = 2, .part = 1}}};
    layout.Check(whole);
    EXPECT_EQ(layout.PartShape(whole), Shape({part < 2 ? 3 : 1, 2}));
    const std::vector<int64_t> elements = Elements(layout, whole);
    ExpectRunsAre(elements, layout, whole);
    for (int64_t e : elements) ++count[static_cast<size_t>(e)];
  }
  for (int64_t e = 0; e < 28; ++e) EXPECT_EQ(count[static_cast<size_t>(e)], e % 4 < 2 ? 0 : 1);
}

TEST(ShardLayoutTest, WhatDoesNotFitIsNamed) {
  const auto check = [](const ShardLayout& layout) {
    return MessageOf([&] { layout.Check({6, 4}); });
  };
  EXPECT_THAT(check({.cuts = {{.axis = "tp", .parts = 4}}}),
              HasSubstr("dimension 0 of a parameter of shape [6, 4] cannot be cut along 'tp': 6 "
                        "elements do not divide into 4 equal parts"));
  EXPECT_THAT(check({.cuts = {{.axis = "tp", .parts = 2, .segments = {3, 3}}}}),
              HasSubstr("3 elements do not divide into 2"));
  EXPECT_THAT(check({.cuts = {{.axis = "tp", .parts = 2, .segments = {2, 2}}}}),
              HasSubstr("the segments along 'tp' add up to 4, but dimension 0 of a parameter of "
                        "shape [6, 4] has 6 elements"));
  EXPECT_THAT(check({.cuts = {{.axis = "tp", .dim = 2}}}), HasSubstr("has no dimension 2"));
  for (const int64_t size : {2, 6}) {
    EXPECT_THAT(check({.cuts = {{.axis = "tp", .parts = 2, .part_size = size}}}),
                HasSubstr(StrCat("cannot be cut along 'tp' into 2 parts of ", size)));
  }
  EXPECT_THAT(check({.cuts = {{.axis = "tp", .parts = 2, .part = 2}}}),
              HasSubstr("part 2 of 2 along 'tp' does not exist"));
  EXPECT_THAT(check({.cuts = {{.axis = "tp"}, {.axis = "tp", .dim = 1}}}),
              HasSubstr("cut along 'tp' twice"));
  EXPECT_THAT(check({.cuts = {{.axis = "tp", .parts = 2}, {.axis = "ep", .parts = 2}}}),
              HasSubstr("cannot be cut along 'ep': 3 elements do not divide into 2"));
  EXPECT_THAT(check({.cuts = {{.axis = "tp"}, {.axis = "ep", .segments = {3, 3}}}}),
              HasSubstr("is cut twice, the second time, along 'ep', by segments"));
  EXPECT_THAT(check({.cuts = {{.axis = "tp", .parts = 2}}, .range = {{"dp", 4, 13}}}),
              HasSubstr("the range [4, 13) along 'dp' does not lie within the 12 elements"));
}

TEST(ShardLayoutTest, AParameterHasItsPartOfTheWhole) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Parameter p({60, 100}, kIota, true);
    p.set_name("w");
    const ShardLayout layout{.cuts = {{.axis = "tp", .dim = 1, .parts = 5, .part = 3}},
                             .range = {{"dp", 5, 1111}}};
    p.SetLayout(layout);
    EXPECT_EQ(p.value().shape(), Shape({1106}));
    EXPECT_EQ(p.logical_shape(), Shape({60, 100}));
    p.Materialize(kCpu, dtype, 7);
    std::vector<float> want;
    for (int64_t e : Elements(layout, {60, 100})) want.push_back(static_cast<float>(e + 7));
    EXPECT_EQ(p.value().To(DType::kF32).ToVector<float>(), want);
    EXPECT_EQ(p.leaf().name(), "w");
    EXPECT_EQ(p.leaf().shape(), Shape({1106}));
    std::vector<float> all(6000);
    std::iota(all.begin(), all.end(), 7.f);
    const Tensor whole = Tensor::FromVector(all, {60, 100}).To(dtype);
    EXPECT_EQ(p.PartOf(whole).To(DType::kF32).ToVector<float>(), want);
    EXPECT_THAT(MessageOf([&] { p.SetLayout({}); }),
                HasSubstr("parameter 'w' can be cut only once"));
    EXPECT_THAT(MessageOf([&] { p.WholeOf(p.value().Detach()); }),
                HasSubstr("only a part of parameter 'w'"));
    Parameter cut({60, 100}, kIota, true);
    cut.Materialize(kCpu, dtype, 7);
    cut.SetLayout(layout);  // of what is in memory
    EXPECT_EQ(cut.value().To(DType::kF32).ToVector<float>(), want);
    Parameter twice({60, 100}, kIota, true);
    twice.Materialize(kCpu, dtype, 7);
    twice.SetLayout({.cuts = layout.cuts});
    EXPECT_THAT(MessageOf([&] { twice.SetLayout({.cuts = {}, .range = layout.range}); }),
                HasSubstr("at last perhaps into ranges"));
    twice.SetLayout(layout);
    EXPECT_EQ(twice.value().To(DType::kF32).ToVector<float>(), want);
  }
}

// Rows of this rank, of which it holds a third, and of these a range.
TEST(ShardLayoutTest, APartIsCutFurther) {
  ShardLayout layout{.cuts = {{.axis = "tp", .parts = 2, .part = 1}}};
  Parameter p({12, 5}, kIota, true);
  p.Materialize(kCpu, DType::kF32, 0);
  p.SetLayout(layout);
  layout.cuts.push_back({.axis = "ep", .parts = 3, .part = 2});
  p.SetLayout(layout);
  EXPECT_EQ(p.value().shape(), Shape({2, 5}));
  layout.range = {"fsdp", 3, 9};
  p.SetLayout(layout);
  EXPECT_EQ(p.value().ToVector<float>(), (std::vector<float>{53, 54, 55, 56, 57, 58}));
  p.Materialize(kCpu, DType::kF32, 1);
  EXPECT_EQ(p.value().ToVector<float>(), (std::vector<float>{54, 55, 56, 57, 58, 59}));
}

}  // namespace
}  // namespace lockstep
