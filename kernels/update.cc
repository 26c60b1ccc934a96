#include "kernels/update.h"

namespace lockstep::ops::internal {
namespace {

void CheckLikeValue(const char* op, size_t i, const char* name, const Tensor& t,
                    const Tensor& value, DType dtype) {
  LS_CHECK(t.defined() && t.shape() == value.shape() && t.dtype() == dtype && t.is_contiguous() &&
               t.device() == value.device(),
           op, ": ", name, " of tensor ", i, " must be a contiguous ", dtype, value.shape(), " on ",
           value.device(), ", got ", t.Describe());
}

}  // namespace

void PrepareUpdate(const char* op, std::span<const UpdateTensors> tensors,
                   std::span<const char* const> state_names, const StepState& state) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [value, grad, states, master, average, weight_decay, lr_factor, parameter, place] =
        tensors[i];
    LS_CHECK(value.defined() && IsFloating(value.dtype()) && value.is_contiguous() &&
                 value.device() == state.device(),
             op, ": value of tensor ", i, " must be contiguous, floating and on ", state.device(),
             " as the StepState is, got ", value.Describe());
    LS_CHECK(grad.defined() && IsFloating(grad.dtype()), op, ": grad of tensor ", i,
             " must be floating, got ", grad.Describe());
    CheckLikeValue(op, i, "grad", grad, value, grad.dtype());
    const bool narrow = !states.empty() && states[0].defined() &&
                        states[0].dtype() == DType::kBF16 && value.dtype() != DType::kF64;
    for (size_t k = 0; k < state_names.size(); ++k) {
      CheckLikeValue(op, i, state_names[k], k < states.size() ? states[k] : Tensor(), value,
                     narrow ? DType::kBF16 : StateDType(value));
    }
    LS_CHECK(value.dtype() != DType::kF16 || master.defined(), op, ": tensor ", i,
             " is f16, which needs an f32 master: small updates would be lost");
    if (!master.defined()) continue;
    LS_CHECK(SizeOf(value.dtype()) == 2, op, ": tensor ", i, " has a master, but its value is ",
             value.Describe(), ": only 16-bit values have one");
    CheckLikeValue(op, i, "master", master, value, DType::kF32);
  }
  for (const UpdateTensors& t : tensors) {
    t.value.storage().BumpVersion();
    if (t.master.defined()) t.master.storage().BumpVersion();
    for (size_t k = 0; k < state_names.size(); ++k) t.states[k].storage().BumpVersion();
  }
}

}  // namespace lockstep::ops::internal
