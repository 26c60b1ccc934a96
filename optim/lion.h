// Lion: Chen et al., "Symbolic discovery of optimization algorithms" (2023).
#pragma once

#include "optim/optimizer.h"
#include "optim/update_state.h"

namespace lockstep::optim {

struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;     // of parameters with decay(); decoupled
  bool master_weights = true;  // of 16-bit parameters: f32 originals, which are what is updated
};

// Steps of the learning rate's length in the direction of the sign of an average of gradients
// (kernels/lion/lion.h). Its authors advise a learning rate 3 to 10 times smaller than AdamW's, and
// a weight decay as many times larger. State, on the parameters' devices: "<parameter>.exp_avg",
// zero at first, of f32 (f64 for f64 parameters); for 16-bit parameters with master_weights also
// ".master", at first the value. A parameter without a gradient is left alone. Results depend
// neither on the order of the parameters nor on the number of threads.
class Lion : public Optimizer {
 public:
  // Throws ArgumentError for options that are out of range or not finite.
  explicit Lion(std::vector<std::shared_ptr<Parameter>> parameters,
                const LionOptions& options = {});

  const LionOptions& options() const { return options_; }

  const char* name() const override { return "Lion"; }
  NamedTensors NamedState() const override;

 protected:
  Betas betas() const override { return {options_.beta1, options_.beta2}; }
  bool keeps_masters() const override { return options_.master_weights; }
  void Update(const StepState& state) override;

 private:
  LionOptions options_;
  std::vector<internal::ParameterState> state_;  // as parameters()
};

}  // namespace lockstep::optim
