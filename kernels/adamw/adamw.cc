#include "kernels/adamw/adamw.h"

namespace lockstep::ops {
namespace {

void CheckLike(size_t i, const char* name, const Tensor& t, const Tensor& value, DType dtype) {
  LS_CHECK(t.defined() && t.shape() == value.shape() && t.dtype() == dtype && t.is_contiguous() &&
               t.device() == value.device(),
           "adamw: ", name, " of tensor ", i, " must be a contiguous ", dtype, value.shape(),
           " on ", value.device(), ", got ", t.Describe());
}

void Check(size_t i, const AdamWTensors& t, const StepState& state) {
  const Tensor& value = t.value;
  LS_CHECK(value.defined() && IsFloating(value.dtype()) && value.is_contiguous() &&
               value.device() == state.device(),
           "adamw: value of tensor ", i, " must be contiguous, floating and on ", state.device(),
           " as the StepState is, got ", value.Describe());
  LS_CHECK(t.grad.defined() && IsFloating(t.grad.dtype()), "adamw: grad of tensor ", i,
           " must be floating, got ", t.grad.Describe());
  CheckLike(i, "grad", t.grad, value, t.grad.dtype());
  const DType accumulate = value.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  CheckLike(i, "exp_avg", t.exp_avg, value, accumulate);
  CheckLike(i, "exp_avg_sq", t.exp_avg_sq, value, accumulate);
  if (!t.master.defined()) return;
  LS_CHECK(SizeOf(value.dtype()) == 2, "adamw: tensor ", i, " has a master, but its value is ",
           value.Describe(), ": only 16-bit values have one");
  CheckLike(i, "master", t.master, value, DType::kF32);
}

}  // namespace

void AdamWUpdate(std::span<const AdamWTensors> tensors, const AdamWHyper& hyper,
                 const StepState& state) {
  for (const double beta : {hyper.beta1, hyper.beta2}) {
    LS_CHECK(beta >= 0 && beta < 1, "adamw: betas must be in [0, 1), got ", beta);
  }
  LS_CHECK(hyper.eps >= 0, "adamw: eps must not be negative, got ", hyper.eps);
  for (size_t i = 0; i < tensors.size(); ++i) Check(i, tensors[i], state);
  for (const AdamWTensors& t : tensors) {
    for (const Tensor* written : {&t.value, &t.exp_avg, &t.exp_avg_sq, &t.master}) {
      if (written->defined()) written->storage().BumpVersion();
    }
  }
  adamw_update(CurrentStream(state.device()), tensors, hyper, state.device_values());
}

}  // namespace lockstep::ops
