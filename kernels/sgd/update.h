// What the updates of parameters share: the checks of their tensors.
#pragma once

#include <string>

#include "core/step_state.h"
#include "core/tensor.h"

namespace lockstep {

// The dtype in which an optimizer keeps state about a value: f64 for f64, else f32.
inline DType StateDType(const Tensor& value) {
  return value.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
}

namespace ops::internal {

// Throws ArgumentError, in the words of `op`, unless tensor `i`'s `name` is of `dtype` and lies as
// its value does.
inline void CheckLikeValue(const char* op, size_t i, const char* name, const Tensor& t,
                           const Tensor& value, DType dtype) {
  LS_CHECK(t.defined() && t.shape() == value.shape() && t.dtype() == dtype && t.is_contiguous() &&
               t.device() == value.device(),
           op, ": ", name, " of tensor ", i, " must be a contiguous ", dtype, value.shape(), " on ",
           value.device(), ", got ", t.Describe());
}

// The value, its gradient and, if defined, its master: as optimizers take them.
inline void CheckValue(const char* op, size_t i, const Tensor& value, const Tensor& grad,
                       const Tensor& master, const StepState& state) {
  LS_CHECK(value.defined() && IsFloating(value.dtype()) && value.is_contiguous() &&
               value.device() == state.device(),
           op, ": value of tensor ", i, " must be contiguous, floating and on ", state.device(),
           " as the StepState is, got ", value.Describe());
  LS_CHECK(grad.defined() && IsFloating(grad.dtype()), op, ": grad of tensor ", i,
           " must be floating, got ", grad.Describe());
  CheckLikeValue(op, i, "grad", grad, value, grad.dtype());
  if (!master.defined()) return;
  LS_CHECK(SizeOf(value.dtype()) == 2, op, ": tensor ", i, " has a master, but its value is ",
           value.Describe(), ": only 16-bit values have one");
  CheckLikeValue(op, i, "master", master, value, DType::kF32);
}

}  // namespace ops::internal
}  // namespace lockstep
