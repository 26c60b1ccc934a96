// Stochastic gradient descent, with Polyak's or Nesterov's momentum.
#pragma once

#include "optim/optimizer.h"
#include "optim/update_state.h"

namespace lockstep::optim {

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;       // needs momentum
  double weight_decay = 0;     // of parameters with decay(); added to the gradient
  bool master_weights = true;  // of 16-bit parameters: f32 originals, which are what is updated
};

// torch.optim.SGD's arithmetic (kernels/sgd/sgd.h). State, on the parameters' devices: with
// momentum
// "<parameter>.momentum_buffer", zero at first, of f32 (f64 for f64 parameters); for 16-bit
// parameters with master_weights also ".master", at first the value. A parameter without a gradient
// is left alone. Results depend neither on the order of the parameters nor on the number of
// threads.
class Sgd : public Optimizer {
 public:
  // Throws ArgumentError for options that are out of range or not finite.
  explicit Sgd(std::vector<std::shared_ptr<Parameter>> parameters, const SgdOptions& options = {});

  const SgdOptions& options() const { return options_; }

  const char* name() const override { return "Sgd"; }
  NamedTensors NamedState() const override;

 protected:
  bool keeps_masters() const override { return options_.master_weights; }
  void Update(const StepState& state) override;

 private:
  SgdOptions options_;
  std::vector<internal::ParameterState> state_;  // as parameters()
};

}  // namespace lockstep::optim
