// Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024): momentum,
// whose singular values are then brought close to 1.
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "kernels/update.h"

namespace lockstep {

inline constexpr const char* kMuonStates[] = {"momentum_buffer"};

// The factor of the learning rate.
enum class MuonScale {
  // 0.2 sqrt(max(R, C)), for a matrix [R, C]: the rms of AdamW's updates, so that its learning rate
  // and weight decay serve (Liu et al., "Muon is scalable for LLM training", 2025).
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
  // Of X and of the products: f32 (f64 for f64 values), or bf16, as PyTorch has them.
  DType dtype = DType::kF32;
  DecoupledDecay decay{};
};

namespace ops {

// torch.optim.Muon's update, with g = grad * clip_factor / loss_scale:
//   m = m + (1 - momentum) (g - m);   u = nesterov ? g + momentum (m - g) : m
//   X = u / max(|u|, eps), with the Frobenius norm;
//   `steps` times: A = X X^T;   X = a X + (b A + c A^2) X
//   p = p (1 - lr weight_decay) - lr scale X
// with what the hyper's `decay` leaves of the weight decay. A is the smaller of X X^T and X^T X. X
// is normalised in f32 (f64 for f64 values) and rounded to the hyper's dtype, as each result of a
// product is. See kernels/update.h. The bits do not depend on threads. Throws ArgumentError, also
// for a value that is no matrix.
void MuonUpdate(std::span<const UpdateTensors> tensors, const MuonHyper& hyper,
                const StepState& state);

}  // namespace ops

// A matrix [R, C] that is not empty, and workspace, with n = min(R, C).
struct MuonMatrix {
  const UpdateTensors* tensors;
  // [2, R C] of zeros, in StateDType: the result of the momentum, in row 0, becomes X. With a hyper
  // of bf16 [1, R C], and X is in `narrow`, [2, R C]; else that is undefined.
  Tensor matrices, narrow;
  Tensor squares;  // [2, n, n], of the products' dtype
  const Tensor& products() const { return narrow.defined() ? narrow : matrices; }
};
// Of one matrix, or of several small ones.
inline constinit Slot<void(std::span<const MuonMatrix> all, const MuonHyper& hyper,
                           const StepValues* values)>
    muon_update{"muon_update"};

}  // namespace lockstep
