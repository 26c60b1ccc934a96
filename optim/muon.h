// Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
#pragma once

#include <functional>

#include "kernels/muon/muon.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;  // of Newton and Schulz
  MuonScale scale = MuonScale::kMatchAdamW;
  DType dtype = DType::kF32;  // of what is orthogonalised and of products; or kBF16, fast on GPUs
  double weight_decay = 0.1;  // of parameters with decay(); decoupled
  DecoupledDecay decay{};     // what becomes of it
  // Whether 16-bit parameters have f32 originals, which are what is updated. Without them, bf16
  // parameters are rounded stochastically.
  bool master_weights = true;
  DType state_dtype = DType::kF32;  // or kBF16, rounded stochastically: half the memory
  StateOffload offload{};           // whether state is kept on the host
  double ema = 0;                   // decay of averages of the weights; 0: none are kept
  // Which parameters Muon updates: matrices of hidden layers. Where empty, all with two dimensions;
  // leave embeddings and output layers to AdamW.
  std::function<bool(const Parameter&)> matrix;
  // The numbers of rows of each of these, which add up to all, that are orthogonalised apart, such
  // as queries, keys and values of a fused matrix. Where empty, each matrix is one.
  std::function<std::vector<int64_t>(const Parameter&)> segments = nullptr;
  // AdamW's, for the other parameters.
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

// torch.optim.Muon's arithmetic (kernels/muon/muon.h) for hidden matrices, AdamW for all other
// parameters: at one learning rate, which `scale` makes fit both, or in groups with factors of
// their own, such as with MuonScale::kSpectral 0.02 for matrices and 4e-3 for the rest (Jordan's
// records). State: the matrices' ".momentum_buffer"; then AdamW's for the others. Betas of a group
// are AdamW's.
class Muon : public Optimizer {
 public:
  // Throws ArgumentError for options that are out of range or not finite, if `matrix` chooses a
  // parameter that does not have two dimensions, and for `segments` that do not add up to its rows.
  explicit Muon(std::vector<std::shared_ptr<Parameter>> parameters, const MuonOptions& options = {})
      : Muon(std::vector{ParameterGroup{std::move(parameters)}}, options) {}
  explicit Muon(std::vector<ParameterGroup> groups, const MuonOptions& options = {});
};

}  // namespace lockstep::optim
