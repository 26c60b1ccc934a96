// Stochastic gradient descent, with Polyak's or Nesterov's momentum.
#pragma once

#include "optim/optimizer.h"

namespace lockstep::optim {

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;    // needs momentum
  double weight_decay = 0;  // of parameters with decay(); added to the gradient
  // Whether 16-bit parameters have f32 originals, which are what is updated. Without them, bf16
  // parameters are rounded stochastically.
  bool master_weights = true;
  DType state_dtype = DType::kF32;  // or kBF16, rounded stochastically: half the memory
  StateOffload offload{};           // whether state is kept on the host
  double ema = 0;                   // decay of averages of the weights; 0: none are kept
};

// torch.optim.SGD's arithmetic (kernels/sgd/sgd.h). State, with momentum: ".momentum_buffer".
class Sgd : public Optimizer {
 public:
  // Throws ArgumentError for options that are out of range or not finite.
  explicit Sgd(std::vector<std::shared_ptr<Parameter>> parameters, const SgdOptions& options = {})
      : Sgd(std::vector{ParameterGroup{std::move(parameters)}}, options) {}
  explicit Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options = {});
};

}  // namespace lockstep::optim
