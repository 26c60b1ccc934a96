// Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
#pragma once

#include <functional>

#include "kernels/muon/muon.h"
#include "optim/adamw.h"
#include "optim/optimizer.h"
#include "optim/update_state.h"

namespace lockstep::optim {

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;  // of Newton and Schulz
  MuonScale scale = MuonScale::kMatchAdamW;
  double weight_decay = 0.1;   // of parameters with decay(); decoupled
  bool master_weights = true;  // of 16-bit parameters: f32 originals, which are what is updated
  // Which parameters Muon updates: matrices of hidden layers. Where empty, all with two dimensions;
  // embeddings and output layers had better be left to AdamW.
  std::function<bool(const Parameter&)> matrix;
  // AdamW's, for the other parameters.
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

// torch.optim.Muon's arithmetic (kernels/muon/muon.h) for hidden matrices, AdamW for all other
// parameters, at one learning rate: `scale` makes it fit both. State, on the parameters' devices:
// "<parameter>.momentum_buffer", zero at first, of f32 (f64 for f64 parameters), and for 16-bit
// parameters with master_weights ".master"; then AdamW's for the others. A parameter without a
// gradient is left alone. Results depend neither on the order of the parameters nor on the number
// of threads.
class Muon : public Optimizer {
 public:
  // Throws ArgumentError for options that are out of range or not finite, and if `matrix` chooses a
  // parameter that does not have two dimensions.
  explicit Muon(std::vector<std::shared_ptr<Parameter>> parameters,
                const MuonOptions& options = {});

  const MuonOptions& options() const { return options_; }
  // Those that Muon itself updates.
  const std::vector<std::shared_ptr<Parameter>>& matrices() const { return matrices_; }

  const char* name() const override { return "Muon"; }
  NamedTensors NamedState() const override;

 protected:
  Betas betas() const override { return {options_.beta1, options_.beta2}; }
  bool keeps_masters() const override { return options_.master_weights; }
  void Update(const StepState& state) override;

 private:
  MuonOptions options_;
  std::vector<std::shared_ptr<Parameter>> matrices_;
  std::vector<internal::ParameterState> state_;  // as matrices_
  std::unique_ptr<AdamW> adamw_;                 // of the others
};

}  // namespace lockstep::optim
