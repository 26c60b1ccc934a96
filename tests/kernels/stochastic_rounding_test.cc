// Stochastic rounding to bf16: the laws of one number, and of an update's elements.
#include "kernels/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/adamw/adamw.h"
#include "kernels/binary/binary.h"
#include "kernels/sgd/sgd.h"

namespace lockstep {
namespace {

float FromBits(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
float Round(float x, uint32_t random) {
  return FromBits(RoundStochastically(std::bit_cast<uint32_t>(x), random));
}
// The largest magnitude that bf16 holds and that does not exceed x's.
float Below(float x) { return FromBits(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16)); }

// Of every size, subnormal numbers too.
std::vector<float> Numbers() {
  std::vector<float> numbers = {1, -1, 1.5f, 3.14159f, -1e-3f, 1e30f, -7e-39f, 1e-45f, 0, -0.0f};
  const Philox random(5);
  for (uint64_t i = 0; i < 300; ++i) {
    const float x = std::bit_cast<float>(random.At(1, i));
    // Beyond the largest bf16 the neighbour above is infinite.
    if (std::abs(x) < 3e38f) numbers.push_back(x);
  }
  return numbers;
}

TEST(StochasticRounding, TheExpectationIsTheNumber) {
  for (const float x : Numbers()) {
    double sum = 0;
    for (uint32_t random = 0; random < 65536; ++random) {
      sum += Round(x, random);
    }
    // Over all random numbers the mean is exact; the sum's own rounding is below this.
    EXPECT_NEAR(sum / 65536, x, 1e-12 * std::abs(x)) << x;
  }
}

TEST(StochasticRounding, TheResultIsOneOfTheTwoNeighbours) {
  for (const float x : Numbers()) {
    const float below = Below(x);
    const float above =
        FromBits(static_cast<uint16_t>((std::bit_cast<uint32_t>(x) >> 16) + (below == x ? 0 : 1)));
    for (uint32_t random = 0; random < 65536; random += 13) {
      const float y = Round(x, random);
      EXPECT_TRUE(y == below || y == above) << x << " became " << y;
    }
    EXPECT_EQ(Round(x, 0), below);
    EXPECT_EQ(Round(x, 65535), above);
  }
}

TEST(StochasticRounding, WhatBF16HoldsStays) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = FromBits(static_cast<uint16_t>(bits));
    for (const uint32_t random : {0u, 1u, 40000u, 65535u}) {
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(Round(x, random)));
      } else {
        EXPECT_EQ(RoundStochastically(std::bit_cast<uint32_t>(x), random), bits);
      }
    }
  }
  // A NaN whose upper half alone would be infinity.
  EXPECT_TRUE(std::isnan(Round(std::bit_cast<float>(0x7f800001u), 0)));
}

// ---- Random numbers. ----

TEST(StochasticRounding, NumbersAreUniformAndDependOnTheirKey) {
  StepValues values;
  values.seed = 3;
  const RoundingNumbers numbers(values, HashName("w"), 0);
  constexpr int kDraws = 1 << 18;
  double sum = 0, products = 0;
  int ones[16] = {};
  double before = 0;
  for (int i = 0; i < kDraws; ++i) {
    const uint32_t x = numbers.At(static_cast<uint64_t>(i));
    ASSERT_LT(x, 65536u);
    const double centred = (x + 0.5) / 65536 - 0.5;
    sum += centred;
    products += centred * before;
    before = centred;
    for (int bit = 0; bit < 16; ++bit) ones[bit] += static_cast<int>(x >> bit & 1);
  }
  // Five standard deviations each; those of a uniform number are 1 / sqrt(12).
  EXPECT_LT(std::abs(sum / kDraws), 5 / std::sqrt(12.0 * kDraws));
  EXPECT_LT(std::abs(products / kDraws), 5.0 / 12 / std::sqrt(kDraws));
  for (const int count : ones) EXPECT_LT(std::abs(count - kDraws / 2), 2.5 * std::sqrt(kDraws));

  std::set<uint64_t> streams;
  for (const char* name : {"w", "b"}) {
    for (values.step = 0; values.step < 20; ++values.step) {
      for (int tensor = 0; tensor < 3; ++tensor) {
        streams.insert(RoundingNumbers(values, HashName(name), tensor).stream);
      }
    }
  }
  EXPECT_EQ(streams.size(), 2u * 20 * 3);
}

TEST(StochasticRounding, PlacesAreThoseOfTheLayout) {
  const Shape whole{12, 6, 4};
  const auto check = [&](const ShardLayout& layout) {
    const ElementPlace place = PlaceOf(layout, whole);
    for (int64_t i = 0; i < layout.PartShape(whole).numel(); ++i) {
      ASSERT_EQ(place.At(i), static_cast<uint64_t>(layout.RunAt(whole, i).first)) << i;
    }
  };
  check({});
  for (const int dim : {0, 1, 2}) {
    for (const int64_t part : {0, 1}) {
      check({.cuts = {{.axis = "tp", .dim = dim, .parts = 2, .part = part}}});
      check({.cuts = {{.axis = "tp", .dim = dim, .parts = 2, .part = part}},
             .range = ShardRange{"dp", 13, 101}});
    }
  }
  check({.range = ShardRange{"dp", 5, 77}});
  check({.range = ShardRange{"dp", 7, 7}});
  check({.cuts = {{.axis = "tp", .dim = 0, .parts = 2, .part = 1, .segments = {4, 4, 4}}}});
  EXPECT_THROW(
      PlaceOf({.cuts = {{.axis = "tp", .dim = 0, .parts = 2, .part = 1, .segments = {8, 2, 2}}}},
              whole),
      ArgumentError);
}

// ---- Updates. ----

Tensor Values(const Shape& shape, uint64_t stream, DType dtype) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = ToUniform(Philox(9).At(stream, i)) - 0.5f;
  return Tensor::FromVector(values, shape).To(dtype);
}

std::vector<uint16_t> Halves(const Tensor& x) {
  const auto* data = static_cast<const uint16_t*>(x.raw_data());
  return {data, data + x.bytes() / 2};
}

constexpr uint64_t kName = HashName("h.0.w");

// Value, moments and gradient of a bf16 parameter without master.
UpdateTensors Part(const Tensor& value, const Tensor& grad, const std::vector<Tensor>& states,
                   const ElementPlace& place) {
  return {.value = value.Contiguous(),
          .grad = grad.Contiguous(),
          .states = states,
          .master = {},
          .weight_decay = 0.1,
          .parameter = kName,
          .place = place};
}

TEST(StochasticRounding, APartHasTheBitsOfTheWhole) {
  const Shape shape{90, 128};
  const auto update = [](UpdateTensors t, int64_t step) {
    StepState state(kCpu, 1);
    state.Begin(step, 0.01, {{0.9, 0.999}});
    ops::AdamWUpdate(std::span(&t, 1), {}, state);
    std::vector<std::vector<uint16_t>> out = {Halves(t.value)};
    for (const Tensor& s : t.states) out.push_back(Halves(s));
    return out;
  };
  const auto inputs = [&](const auto& part) {
    std::vector<Tensor> all;
    for (uint64_t i = 0; i < 4; ++i) {
      const Tensor x = Values(shape, i, DType::kBF16);
      all.push_back(part(i == 3 ? ops::Mul(x, x) : x).Contiguous().Clone());
    }
    return all;
  };
  const auto whole = [&](int64_t step) {
    const auto x = inputs([](const Tensor& t) { return t; });
    return update(Part(x[0], x[1], {x[2], x[3]}, {}), step);
  };
  EXPECT_NE(whole(5), whole(6));
  const auto at5 = whole(5);
  const auto gathered = [&](const ShardLayout& layout, const auto& part) {
    const auto x = inputs(part);
    const auto parts = update(Part(x[0], x[1], {x[2], x[3]}, PlaceOf(layout, shape)), 5);
    for (size_t tensor = 0; tensor < 3; ++tensor) {
      for (size_t i = 0; i < parts[tensor].size(); ++i) {
        const int64_t at = layout.RunAt(shape, static_cast<int64_t>(i)).first;
        ASSERT_EQ(parts[tensor][i], at5[tensor][static_cast<size_t>(at)]) << tensor << ", " << i;
      }
    }
  };
  const auto cut = [](int dim, int64_t part, int64_t parts) {
    return ShardLayout{.cuts = {{.axis = "tp", .dim = dim, .parts = parts, .part = part}}};
  };
  for (int64_t part = 0; part < 2; ++part) {
    gathered(cut(0, part, 2),
             [&](const Tensor& t) { return t.Slice(0, 45 * part, 45 * part + 45); });
    gathered(cut(1, part, 2),
             [&](const Tensor& t) { return t.Slice(1, 64 * part, 64 * part + 64); });
  }
  // Columns of four elements, fewer than share a block of random numbers.
  gathered(cut(1, 31, 32), [](const Tensor& t) { return t.Slice(1, 124, 128); });
  gathered({.range = ShardRange{"dp", 1001, 7777}},
           [](const Tensor& t) { return t.View({90 * 128}).Slice(0, 1001, 7777); });
  const int threads = NumThreads();
  for (const int n : {1, 2, 3}) {
    SetNumThreads(n);
    EXPECT_EQ(whole(5), at5) << n << " threads";
  }
  SetNumThreads(threads);
}

// An update of a hundredth of a unit in the last place, a thousand times: rounding to the nearest
// would lose all of them.
TEST(StochasticRounding, SmallUpdatesAreKeptOnTheAverage) {
  constexpr int64_t kElements = 4096;
  constexpr int kSteps = 1000;
  const Tensor value = Tensor::Full({kElements}, 1, DType::kBF16);
  const Tensor grad = Tensor::Full({kElements}, 1, DType::kBF16);
  StepState state(kCpu, 1);
  for (int step = 0; step < kSteps; ++step) {
    state.Begin(step, 0.01 / 256);
    UpdateTensors t = Part(value, grad, {}, {});
    t.weight_decay = 0;
    ops::SgdUpdate(std::span(&t, 1), {}, state);
  }
  double sum = 0;
  for (const double v : value.To(DType::kF64).ToVector<double>()) sum += v;
  // Steps of half a unit below 1; the variance of a step is at most its length times a unit.
  const double moved = kSteps * 0.01 / 256, deviation = std::sqrt(moved / 256 / kElements);
  EXPECT_NEAR(sum / kElements, 1 - moved, 5 * deviation);
}

}  // namespace
}  // namespace lockstep
