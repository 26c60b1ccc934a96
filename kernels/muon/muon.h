// Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024): momentum,
// whose singular values are then brought close to 1.
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "core/step_state.h"
#include "core/tensor.h"

namespace lockstep {

// One matrix's part of an update. All [R, C], contiguous, on the state's device.
struct MuonTensors {
  Tensor value;     // f64, f32 or bf16; written
  Tensor grad;      // floating
  Tensor momentum;  // f64 for an f64 value, else f32; written
  Tensor master;    // undefined, or the f32 original of a 16-bit value; written
  double weight_decay = 0;
};

// What the learning rate is multiplied by.
enum class MuonScale {
  // 0.2 sqrt(max(R, C)): the rms of AdamW's updates, so that its learning rate and weight decay
  // serve
  // (Liu et al., "Muon is scalable for LLM training", 2025).
  kMatchAdamW,
  kSpectral,  // sqrt(max(1, R / C)), as in the original
};

struct MuonHyper {
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;  // of Newton and Schulz
  double a = 3.4445, b = -4.7750, c = 2.0315;
  double eps = 1e-7;  // smallest norm that is divided by
  MuonScale scale = MuonScale::kMatchAdamW;
};

namespace ops {

// torch.optim.Muon's update of all matrices at once, with g = grad * clip_factor / loss_scale:
//   m = m + (1 - momentum) (g - m);   u = nesterov ? g + momentum (m - g) : m
//   X = u / max(|u|, eps), with the Frobenius norm; `steps` times: A = X X^T; X = a X + (b A + c
//   A^2) X p = p (1 - lr weight_decay) - lr scale X
// A is the smaller of X X^T and X^T X. Products are computed in f32 (f64 for f64 values), where
// PyTorch rounds them to bf16. lr and the factors are read from the state on its device. Where
// found_inf is set nothing changes, not a bit. The bits do not depend on threads. Throws
// ArgumentError, also for a value that is no matrix.
void MuonUpdate(std::span<const MuonTensors> tensors, const MuonHyper& hyper,
                const StepState& state);

}  // namespace ops

inline constinit Slot<void(std::span<const MuonTensors> tensors, const MuonHyper& hyper,
                           const StepValues* values)>
    muon_update{"muon_update"};

}  // namespace lockstep
