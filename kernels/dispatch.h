// From a call's dtypes and flags to template arguments, for the CPU and CUDA devices.
#pragma once

#include <type_traits>
#include <utility>

#include "core/tensor.h"

namespace lockstep {

template <class T>
struct TypeTag {
  using type = T;
};

// For what only moves elements: calls f(TypeTag<Unit>) with the unsigned integer of so many bytes.
template <class F>
void DispatchUnit(int64_t bytes, F&& f) {
  switch (bytes) {
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

// The elements as units, each of an element or of several.
template <class Unit>
Unit* Units(const Tensor& x) {
  LS_INVARIANT(static_cast<int64_t>(sizeof(Unit)) % SizeOf(x.dtype()) == 0, x.dtype());
  return static_cast<Unit*>(x.raw_data());
}

// For token ids and targets.
template <class F>
void DispatchIndex(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kI64:
      return f(TypeTag<int64_t>());
    case DType::kI32:
      return f(TypeTag<int32_t>());
    default:
      throw ArgumentError(StrCat(op, " takes indices of i32 or i64, not ", dtype));
  }
}

// For what is f64 or f32: sums, logits.
template <class F>
void DispatchWide(DType dtype, F&& f) {
  if (dtype == DType::kF64) return f(TypeTag<double>());
  LS_INVARIANT(dtype == DType::kF32, dtype);
  f(TypeTag<float>());
}

// Calls f with std::true_type or std::false_type: a flag of the call as one of the kernel's
// template arguments.
template <class F>
void DispatchBool(bool value, F&& f) {
  if (value) {
    f(std::true_type());
  } else {
    f(std::false_type());
  }
}
// For a flag that is known at compile time: no kernel for the other value.
template <bool value, class F>
void DispatchBool(std::bool_constant<value> flag, F&& f) {
  f(flag);
}

}  // namespace lockstep
