#include "dist/groups/host_reduce.h"

#include <algorithm>
#include <array>
#include <type_traits>

namespace lockstep::dist {
namespace {

// Signed integers are summed as unsigned ones, for which overflow is defined.
template <class T>
struct Computed {
  using type = T;
};
template <>
struct Computed<BF16> {
  using type = float;
};
template <>
struct Computed<F16> {
  using type = float;
};

template <ReduceOp op, class C>
C Combine(C a, C b) {
  if constexpr (op == ReduceOp::kSum) {
    if constexpr (std::is_integral_v<C>) {
      using U = std::make_unsigned_t<C>;
      return static_cast<C>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  } else {
    // The first NaN stays; a later NaN replaces a number.
    const bool take = op == ReduceOp::kMax ? a < b : b < a;
    if constexpr (std::is_floating_point_v<C>) {
      return a != a ? a : (take || b != b) ? b : a;
    } else {
      return take ? b : a;
    }
  }
}

template <ReduceOp op, class T>
void Reduce(std::span<const void* const> inputs, void* output, int64_t n) {
  using C = typename Computed<T>::type;
  constexpr int64_t kBlock = 1024;  // fits in the L1 cache
  std::array<C, kBlock> sum;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const T* const first = static_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<C>(first[i]);
    for (const void* const input : inputs.subspan(1)) {
      const T* const next = static_cast<const T*>(input) + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] = Combine<op>(sum[i], static_cast<C>(next[i]));
    }
    T* const out = static_cast<T*>(output) + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(sum[i]);
  }
}

template <class T>
void Reduce(ReduceOp op, std::span<const void* const> inputs, void* output, int64_t n) {
  switch (op) {
    case ReduceOp::kSum:
      return Reduce<ReduceOp::kSum, T>(inputs, output, n);
    case ReduceOp::kMax:
      return Reduce<ReduceOp::kMax, T>(inputs, output, n);
    case ReduceOp::kMin:
      return Reduce<ReduceOp::kMin, T>(inputs, output, n);
  }
}

}  // namespace

void ReduceInOrder(ReduceOp op, DType dtype, std::span<const void* const> inputs, void* output,
                   int64_t n) {
  switch (dtype) {
    case DType::kF64:
      return Reduce<double>(op, inputs, output, n);
    case DType::kF32:
      return Reduce<float>(op, inputs, output, n);
    case DType::kF16:
      return Reduce<F16>(op, inputs, output, n);
    case DType::kBF16:
      return Reduce<BF16>(op, inputs, output, n);
    case DType::kI64:
      return Reduce<int64_t>(op, inputs, output, n);
    case DType::kI32:
      return Reduce<int32_t>(op, inputs, output, n);
    case DType::kU16:
      return Reduce<uint16_t>(op, inputs, output, n);
    case DType::kU8:
      return Reduce<uint8_t>(op, inputs, output, n);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kBool:
      break;
  }
  throw ArgumentError(StrCat("reduce: ", dtype, " cannot be reduced"));
}

}  // namespace lockstep::dist
