// The gated units of Llama's MLP and of Gemma's: Shazeer, "GLU variants improve transformer"
// (2020).
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class GateForm {
  kSilu,      // SwiGLU
  kGeluTanh,  // GEGLU, with the tanh form of GELU
};

namespace ops {

// y = silu(gate) * up, elementwise, with silu(x) = x / (1 + e^-x). gate_up: [..., 2F] floating, the
// gate in the first half of each row and up in the second (one GEMM makes both); y: [..., F].
// Computes in f32 or wider and rounds once. Saves gate_up; forward and backward are one pass each.
Tensor SwiGlu(const Tensor& gate_up);

// The same with gelu(gate), in its tanh form (ops::Gelu), in the place of silu(gate), as in Gemma.
Tensor GegluTanh(const Tensor& gate_up);

}  // namespace ops

// gate_up: [rows, 2F]; y: [rows, F].
inline constinit Slot<void(GateForm form, const Tensor& gate_up, const Tensor& y)> swiglu_forward{
    "swiglu_forward"};
// dgate_up: [rows, 2F], written, or added to.
inline constinit Slot<void(GateForm form, const Tensor& gate_up, const Tensor& dy,
                           const Tensor& dgate_up, bool accumulate)>
    swiglu_backward{"swiglu_backward"};

}  // namespace lockstep
