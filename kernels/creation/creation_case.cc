#include <cmath>
#include <numbers>

#include "core/philox.h"
#include "kernels/creation/creation.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 0x123456789abcdef0;

// `make` gets the dtype under test and a device. The one input just says which.
OpSample Sample(const std::string& name, std::function<Tensor(DType, Device)> make,
                const Shape& shape, std::function<double(int64_t)> element) {
  return {.name = name,
          .inputs = {{.shape = {}, .differentiable = false}},
          .run = [=](TensorSpan in) { return make(in[0].dtype(), in[0].device()); },
          .reference = [=](RefSpan) { return FromElements(shape, element); }};
}

// 64 bits from words `word` and `word + 1` of block i / 2.
uint64_t Bits(const char* name, int64_t i, int word) {
  const Philox::Block b = Philox(kSeed)(HashName(name), static_cast<uint64_t>(i / 2));
  return uint64_t{b.v[word]} << 32 | b.v[word + 1];
}
double Uniform(int64_t i) {
  return static_cast<double>(Bits("rand", i, i % 2 == 0 ? 0 : 2) >> 11) * 0x1p-53;
}
double Normal(int64_t i) {
  const double u = (static_cast<double>(Bits("randn", i, 0) >> 11) + 0.5) * 0x1p-53;
  const double angle =
      2 * std::numbers::pi * static_cast<double>(Bits("randn", i, 2) >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}
double Integer(int64_t i) {  // in [-3, 4)
  const auto high = static_cast<double>(Bits("rand_int", i, i % 2 == 0 ? 0 : 2) >> 32);
  return std::floor(high * 7 * 0x1p-32) - 3;
}

std::vector<OpSample> Samples() {
  const auto rand = [](const Shape& shape) {
    return [=](DType t, Device d) { return ops::Rand(shape, kSeed, t, d); };
  };
  const auto randn = [](const Shape& shape) {
    return [=](DType t, Device d) { return ops::Randn(shape, kSeed, t, d); };
  };
  const auto rand_int = [](const Shape& shape) {
    return [=](DType, Device d) { return ops::RandInt(-3, 4, shape, kSeed, DType::kI64, d); };
  };
  return {Sample(
              "arange_i64", [](DType, Device d) { return ops::Arange(37, DType::kI64, d); }, {37},
              [](int64_t i) { return i; }),
          Sample(
              "arange_of_integers",
              [](DType, Device d) { return ops::Arange(2, 9, 1, DType::kI64, d); }, {7},
              [](int64_t i) { return 2 + i; }),
          Sample(
              "arange_by_two", [](DType, Device d) { return ops::Arange(0, 9, 2, DType::kI32, d); },
              {5}, [](int64_t i) { return 2 * i; }),
          Sample(
              "arange_of_fractions", [](DType t, Device d) { return ops::Arange(0, 3.5, 1, t, d); },
              {4}, [](int64_t i) { return i; }),
          Sample(
              "arange", [](DType t, Device d) { return ops::Arange(-1, 2, 0.3, t, d); }, {10},
              [](int64_t i) { return -1 + 0.3 * static_cast<double>(i); }),
          Sample(
              "arange_down", [](DType t, Device d) { return ops::Arange(5, 0, -2, t, d); }, {3},
              [](int64_t i) { return 5.0 - 2 * static_cast<double>(i); }),
          Sample(
              "arange_nothing", [](DType t, Device d) { return ops::Arange(1, 1, 2, t, d); }, {0},
              [](int64_t) { return 0; }),
          Sample(
              "linspace", [](DType t, Device d) { return ops::Linspace(-1, 3, 7, t, d); }, {7},
              [](int64_t i) { return -1 + static_cast<double>(i) * 4 / 6; }),
          Sample(
              "linspace_one", [](DType t, Device d) { return ops::Linspace(5, 7, 1, t, d); }, {1},
              [](int64_t) { return 5; }),
          Sample(
              "eye", [](DType t, Device d) { return ops::Eye(130, t, d); }, {130, 130},
              [](int64_t i) { return i % 131 == 0; }),
          Sample(
              "eye_nothing", [](DType t, Device d) { return ops::Eye(0, t, d); }, {0, 0},
              [](int64_t) { return 0; }),
          Sample("rand", rand({3, 5, 7}), {3, 5, 7}, Uniform),
          Sample("rand_chunks", rand({20001}), {20001}, Uniform),
          Sample("rand_nothing", rand({0, 2}), {0, 2}, Uniform),
          Sample("randn", randn({3, 5, 7}), {3, 5, 7}, Normal),
          Sample("randn_scalar", randn({}), {}, Normal),
          Sample("randn_chunks", randn({20001}), {20001}, Normal),
          Sample("rand_int", rand_int({3, 5, 7}), {3, 5, 7}, Integer)};
}

std::vector<ErrorSample> Errors() {
  return {{"empty_range", [](Device d) { ops::RandInt(3, 3, {2}, 1, DType::kI64, d); },
           "rand_int: low must be less than high, got 3 and 3"},
          {"step_away", [](Device d) { ops::Arange(0, 5, -1, DType::kF32, d); },
           "arange: a step of -1 does not lead from 0 to 5"},
          {"no_step", [](Device d) { ops::Arange(0, 5, 0, DType::kF32, d); },
           "arange: a step of 0 does not lead from 0 to 5"},
          {"arange_of_bytes", [](Device d) { ops::Arange(300, DType::kU8, d); },
           "arange: a tensor of u8 cannot have the value 299"},
          {"arange_below_zero", [](Device d) { ops::Arange(1, -3, -1, DType::kU16, d); },
           "arange: a tensor of u16 cannot have the value -2"},
          {"random_bytes", [](Device d) { ops::RandInt(0, 1000, {2}, 1, DType::kU8, d); },
           "rand_int: a tensor of u8 cannot have the value 999"},
          {"negative", [](Device d) { ops::Arange(-1, DType::kF32, d); },
           "arange: the number of elements must not be negative, got -1"},
          {"integers", [](Device d) { ops::Randn({2}, 1, DType::kI32, d); },
           "randn makes floating tensors, not i32: use RandInt"},
          // Nothing is read.
          {"non_contiguous",
           [](Device d) {
             ops::Rand({2, 2}, 1, DType::kI64, d);
           },
           "rand makes f64, f32, f16 and bf16, not i64"}};
}

const bool registered = RegisterOpCase(
    {.name = "creation", .samples = Samples, .errors = Errors, .differentiable = false});

}  // namespace
}  // namespace lockstep
