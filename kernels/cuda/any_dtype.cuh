// Elements whose dtype is known only at run time: for what no training step does often. A kernel
// for each pair of dtypes would be a poor bargain there.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/types.cuh"

namespace lockstep::cuda {

__device__ inline float Float8(uint8_t bits, __nv_fp8_interpretation_t kind) {
  return ToFloat(f16(__nv_cvt_fp8_to_halfraw(bits, kind)));
}

// Element i of an array of `dtype`, as a double or an i64: exact if that is the type of the dtype's
// kind.
template <class Wide>
__device__ inline Wide ReadAs(DType dtype, const void* p, int64_t i) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<Wide>(static_cast<const double*>(p)[i]);
    case DType::kF32:
      return static_cast<Wide>(static_cast<const float*>(p)[i]);
    case DType::kF16:
      return static_cast<Wide>(ToFloat(static_cast<const f16*>(p)[i]));
    case DType::kBF16:
      return static_cast<Wide>(ToFloat(static_cast<const bf16*>(p)[i]));
    case DType::kF8E4M3:
      return static_cast<Wide>(Float8(static_cast<const uint8_t*>(p)[i], __NV_E4M3));
    case DType::kF8E5M2:
      return static_cast<Wide>(Float8(static_cast<const uint8_t*>(p)[i], __NV_E5M2));
    case DType::kI64:
      return static_cast<Wide>(static_cast<const int64_t*>(p)[i]);
    case DType::kI32:
      return static_cast<Wide>(static_cast<const int32_t*>(p)[i]);
    case DType::kU16:
      return static_cast<Wide>(static_cast<const uint16_t*>(p)[i]);
    case DType::kBool:
    default:
      return static_cast<Wide>(static_cast<const uint8_t*>(p)[i]);
  }
}

// The inverse: rounded once, 16-bit floats by way of f32. Not for the 8-bit ones.
template <class Wide>
__device__ inline void WriteAs(DType dtype, void* p, int64_t i, Wide x) {
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(p)[i] = static_cast<double>(x);
      break;
    case DType::kF32:
      static_cast<float*>(p)[i] = static_cast<float>(x);
      break;
    case DType::kF16:
      static_cast<f16*>(p)[i] = Convert<f16>(static_cast<float>(x));
      break;
    case DType::kBF16:
      static_cast<bf16*>(p)[i] = Convert<bf16>(static_cast<float>(x));
      break;
    case DType::kI64:
      static_cast<int64_t*>(p)[i] = static_cast<int64_t>(x);
      break;
    case DType::kI32:
      static_cast<int32_t*>(p)[i] = static_cast<int32_t>(x);
      break;
    case DType::kU16:
      static_cast<uint16_t*>(p)[i] = static_cast<uint16_t>(x);
      break;
    case DType::kBool:
      static_cast<uint8_t*>(p)[i] = x != Wide(0);
      break;
    default:
      static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(x);
  }
}

}  // namespace lockstep::cuda
