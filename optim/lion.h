// Lion: Chen et al., "Symbolic discovery of optimization algorithms" (2023).
#pragma once

#include "optim/optimizer.h"

namespace lockstep::optim {

struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;  // of parameters with decay(); decoupled
  // Whether 16-bit parameters have f32 originals, which are what is updated. Without them, bf16
  // parameters are rounded stochastically.
  bool master_weights = true;
  DType state_dtype = DType::kF32;  // or kBF16, rounded stochastically: half the memory
  StateOffload offload{};           // whether state is kept on the host
  double ema = 0;                   // decay of averages of the weights; 0: none are kept
};

// Steps of the learning rate's length in the direction of the sign of an average of gradients
// (kernels/lion/lion.h). Its authors advise a learning rate 3 to 10 times smaller than AdamW's, and
// a weight decay as many times larger. State: ".exp_avg".
class Lion : public Optimizer {
 public:
  // Throws ArgumentError for options that are out of range or not finite.
  explicit Lion(std::vector<std::shared_ptr<Parameter>> parameters, const LionOptions& options = {})
      : Lion(std::vector{ParameterGroup{std::move(parameters)}}, options) {}
  explicit Lion(std::vector<ParameterGroup> groups, const LionOptions& options = {});
};

}  // namespace lockstep::optim
