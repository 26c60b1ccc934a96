#include "kernels/creation/creation.h"

#include <cmath>
#include <numbers>

#include "core/math.h"
#include "core/philox.h"
#include "core/thread_pool.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kGrain = 8192;  // even: a block of random numbers is two elements

// Has f(begin, end, data) write elements [begin, end) of type T on the host.
template <class T, class F>
Tensor Made(const Shape& shape, DType dtype, Device device, const F& f) {
  if (device.is_meta()) return Tensor::Empty(shape, dtype, device);
  const Tensor host = Tensor::Empty(shape, DTypeOf<T>);
  T* data = host.data<T>();
  ParallelFor(host.numel(), kGrain, [&](int64_t begin, int64_t end) { f(begin, end, data); });
  return host.To(dtype).To(device);
}

// Element i is f(i).
template <class F>
Tensor Sequence(int64_t n, DType dtype, Device device, const F& f) {
  return Made<double>({n}, dtype, device, [&](int64_t begin, int64_t end, double* out) {
    for (int64_t i = begin; i < end; ++i) out[i] = f(static_cast<double>(i));
  });
}

// 64 random bits each for elements 2 k and 2 k + 1.
struct TwoWords {
  uint64_t v[2];
};
TwoWords Draw(const Philox& philox, uint64_t stream, int64_t k) {
  const Philox::Block b = philox(stream, static_cast<uint64_t>(k));
  return {{uint64_t{b.v[0]} << 32 | b.v[1], uint64_t{b.v[2]} << 32 | b.v[3]}};
}

// Element i is f(two words)[i % 2].
template <class T, class F>
Tensor Random(const char* name, const Shape& shape, uint64_t seed, DType dtype, Device device,
              const F& f) {
  const Philox philox(seed);
  const uint64_t stream = HashName(name);
  return Made<T>(shape, dtype, device, [&](int64_t begin, int64_t end, T* out) {
    for (int64_t i = begin; i < end; i += 2) {  // begins at a multiple of the grain
      const auto two = f(Draw(philox, stream, i / 2));
      out[i] = two.first;
      if (i + 1 < end) out[i + 1] = two.second;
    }
  });
}

void CheckFloating(const char* name, DType dtype) {
  LS_CHECK(IsFloating(dtype), name, " makes floating tensors, not ", dtype,
           name[0] == 'r' ? ": use RandInt" : "");
}

// The binary digits of numbers in [0.5, 1).
int Digits(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 53;
    case DType::kF32:
      return 24;
    case DType::kF16:
      return 11;
    case DType::kBF16:
      return 8;
    default:
      throw ArgumentError(StrCat("rand makes f64, f32, f16 and bf16, not ", dtype, ": use To"));
  }
}

}  // namespace

Tensor Arange(int64_t n, DType dtype, Device device) {
  LS_CHECK(n >= 0, "arange: the number of elements must not be negative, got ", n);
  if (n > 0) CheckHasValue("arange", dtype, static_cast<double>(n - 1));
  return Sequence(n, dtype, device, [](double i) { return i; });
}

Tensor Arange(double begin, double end, double step, DType dtype, Device device) {
  const double n = std::ceil((end - begin) / step);
  LS_CHECK(std::isfinite(begin) && step != 0 && n >= 0 && n < 0x1p62, "arange: a step of ", step,
           " does not lead from ", begin, " to ", end);
  if (n > 0) {
    CheckHasValue("arange", dtype, std::trunc(begin));
    CheckHasValue("arange", dtype, std::trunc(begin + (n - 1) * step));
  }
  return Sequence(static_cast<int64_t>(n), dtype, device,
                  [=](double i) { return begin + i * step; });
}

Tensor Linspace(double begin, double end, int64_t n, DType dtype, Device device) {
  CheckFloating("linspace", dtype);
  LS_CHECK(n >= 0, "linspace: the number of elements must not be negative, got ", n);
  const auto last = static_cast<double>(n - 1), step = n > 1 ? (end - begin) / last : 0.0;
  // From both ends, so that both are exact.
  return Sequence(n, dtype, device, [=](double i) {
    return 2 * i <= last ? begin + i * step : end - (last - i) * step;
  });
}

Tensor Eye(int64_t n, DType dtype, Device device) {
  LS_CHECK(n >= 0, "eye: the size must not be negative, got ", n);
  return Made<double>({n, n}, dtype, device, [n](int64_t begin, int64_t end, double* out) {
    for (int64_t i = begin; i < end; ++i) out[i] = i / n == i % n ? 1 : 0;
  });
}

Tensor Rand(const Shape& shape, uint64_t seed, DType dtype, Device device) {
  const int digits = Digits(dtype);
  const auto uniform = [=](uint64_t word) {
    return std::ldexp(static_cast<double>(word >> (64 - digits)), -digits);
  };
  return Random<double>("rand", shape, seed, dtype, device, [=](const TwoWords& w) {
    return std::pair(uniform(w.v[0]), uniform(w.v[1]));
  });
}

Tensor Randn(const Shape& shape, uint64_t seed, DType dtype, Device device) {
  CheckFloating("randn", dtype);
  return Random<double>("randn", shape, seed, dtype, device, [](const TwoWords& w) {
    // The middle of an interval of width 2^-53: never 0.
    const double radius =
        std::sqrt(-2 * math::Log((static_cast<double>(w.v[0] >> 11) + 0.5) * 0x1p-53));
    const double angle = 2 * std::numbers::pi * (static_cast<double>(w.v[1] >> 11) * 0x1p-53);
    return std::pair(radius * math::Cos(angle), radius * math::Sin(angle));
  });
}

Tensor RandInt(int64_t low, int64_t high, const Shape& shape, uint64_t seed, DType dtype,
               Device device) {
  LS_CHECK(low < high, "rand_int: low must be less than high, got ", low, " and ", high);
  if (dtype != DType::kI64) {
    CheckHasValue("rand_int", dtype, static_cast<double>(low));
    CheckHasValue("rand_int", dtype, static_cast<double>(high - 1));
  }
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  // The upper half of a word times the range.
  const auto within = [=](uint64_t word) {
    const auto upper = static_cast<unsigned __int128>(word) * range >> 64;
    return static_cast<int64_t>(static_cast<uint64_t>(low) + static_cast<uint64_t>(upper));
  };
  return Random<int64_t>("rand_int", shape, seed, dtype, device, [=](const TwoWords& w) {
    return std::pair(within(w.v[0]), within(w.v[1]));
  });
}

}  // namespace lockstep::ops
