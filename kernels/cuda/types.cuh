// Element types on the device, conversions between them, and dispatch by dtype.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "core/tensor.h"
#include "kernels/dispatch.h"

namespace lockstep::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

template <class T>
inline constexpr bool kIs16Bit = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

// The type in which T is accumulated: f64 stays, everything else is f32.
template <class T>
using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

// DTypeOfDevice<bf16> == DType::kBF16, ...
template <class T>
inline constexpr DType kDTypeOf = DTypeOf<T>;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<f16> = DType::kF16;

// The tensor's elements as device type T; throws if that is not its dtype.
template <class T>
T* Data(const Tensor& x) {
  LS_CHECK(kDTypeOf<T> == x.dtype(), "Data<", kDTypeOf<T>, ">() of a tensor of ", x.dtype());
  return static_cast<T*>(x.raw_data());
}
// The same for an optional tensor: null where it is undefined.
template <class T>
T* DataOrNull(const Tensor& x) {
  return x.defined() ? Data<T>(x) : nullptr;
}

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(bf16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(f16 x) { return __half2float(x); }

// Converts between any two element types; 16-bit floats go through f32 and are rounded to nearest
// even.
template <class To, class From>
__device__ inline To Convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (kIs16Bit<From>) {
    return Convert<To>(ToFloat(x));
  } else if constexpr (std::is_same_v<To, bf16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, f16>) {
    return __float2half_rn(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

[[noreturn]] inline void ThrowNoKernel(const char* op, DType dtype, const char* has) {
  throw ArgumentError(
      StrCat(op, " has no CUDA kernel for ", dtype, "; it has ", has, ": cast the input"));
}

// Calls f(TypeTag<T>) with the device type of a floating `dtype`:
//   DispatchFloat("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
//     Launch({"gelu_forward", x}, GeluForwardKernel<T>, ..., Data<T>(x), Data<T>(y));
//   });
template <class F>
void DispatchFloat(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(TypeTag<float>());
    case DType::kBF16:
      return f(TypeTag<bf16>());
    case DType::kF16:
      return f(TypeTag<f16>());
    default:
      ThrowNoKernel(op, dtype, "f32, bf16 and f16");
  }
}

// Like DispatchUnit, also for 16 bytes.
template <class F>
void DispatchWideUnit(int64_t bytes, F&& f) {
  if (bytes == 16) return f(TypeTag<uint4>());
  DispatchUnit(bytes, f);
}

}  // namespace lockstep::cuda
