// Kernels that only move elements, of any dtype.
#pragma once

#include <cstdint>

#include "kernels/cuda/types.cuh"

namespace lockstep::cuda {

// Calls f(TypeTag<Unit>) with the unsigned integer of an element's size.
template <class F>
void DispatchUnit(DType dtype, F&& f) {
  switch (SizeOf(dtype)) {
    case 1:
      return f(TypeTag<uint8_t>());
    case 2:
      return f(TypeTag<uint16_t>());
    case 4:
      return f(TypeTag<uint32_t>());
    default:
      return f(TypeTag<uint64_t>());
  }
}

// The elements as units.
template <class Unit>
Unit* Units(const Tensor& x) {
  LS_INVARIANT(static_cast<int64_t>(sizeof(Unit)) == SizeOf(x.dtype()), x.dtype());
  return static_cast<Unit*>(x.raw_data());
}

}  // namespace lockstep::cuda
