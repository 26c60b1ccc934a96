// What the CPU implementations share: dispatch by dtype, element conversion.
#pragma once

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "kernels/dispatch.h"

namespace lockstep::cpu {

// Elements per chunk of an elementwise loop: some 10 microseconds of work.
inline constexpr int64_t kElementwiseGrain = 16384;

// Items per chunk of a loop over items of so many elements, or of as much work.
inline int64_t GrainOf(int64_t elements) {
  return std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, elements));
}

// Calls f(TypeTag<T>) with the floating type of `dtype`:
//   DispatchFloat("gelu", x.dtype(), [&]<class T>(TypeTag<T>) { ... });
template <class F>
void DispatchFloat(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64:
      return f(TypeTag<double>());
    case DType::kF32:
      return f(TypeTag<float>());
    case DType::kBF16:
      return f(TypeTag<BF16>());
    case DType::kF16:
      return f(TypeTag<F16>());
    default:
      throw ArgumentError(StrCat(op, " has no CPU kernel for ", dtype,
                                 "; it has f64, f32, bf16 and f16: cast the input"));
  }
}

// For integers and bools.
template <class F>
void DispatchInteger(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kI64:
      return f(TypeTag<int64_t>());
    case DType::kI32:
      return f(TypeTag<int32_t>());
    case DType::kU16:
      return f(TypeTag<uint16_t>());
    case DType::kU8:
      return f(TypeTag<uint8_t>());
    default:
      return f(TypeTag<bool>());
  }
}

// Like DispatchFloat, for every dtype.
template <class F>
void DispatchAll(const char* op, DType dtype, F&& f) {
  if (dtype == DType::kF8E4M3) return f(TypeTag<F8E4M3>());
  if (dtype == DType::kF8E5M2) return f(TypeTag<F8E5M2>());
  IsFloating(dtype) ? DispatchFloat(op, dtype, f) : DispatchInteger(dtype, f);
}

template <class T>
inline constexpr bool kIsNarrow = std::is_same_v<T, BF16> || std::is_same_v<T, F16> ||
                                  std::is_same_v<T, F8E4M3> || std::is_same_v<T, F8E5M2>;

// Converts between any two element types; 16- and 8-bit floats go through f32.
template <class To, class From>
inline To Convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (kIsNarrow<From>) {
    return Convert<To>(static_cast<float>(x));
  } else if constexpr (kIsNarrow<To>) {
    return To(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

// to[i] = value(i), or += that, for i in [begin, end). Two loops: with both cases in one, compilers
// do not vectorise it.
template <class T, class F>
[[gnu::always_inline]] inline void WriteOrAdd(bool accumulate, int64_t begin, int64_t end, T* to,
                                              const F& value) {
  if (accumulate) {
    for (int64_t i = begin; i < end; ++i) to[i] = Convert<T>(Convert<Acc<T>>(to[i]) + value(i));
  } else {
    for (int64_t i = begin; i < end; ++i) to[i] = Convert<T>(value(i));
  }
}

}  // namespace lockstep::cpu
