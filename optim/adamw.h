// AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019).
#pragma once

#include "optim/optimizer.h"

namespace lockstep::optim {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // of parameters with decay(); the others have none
  DecoupledDecay decay{};      // what becomes of it
  // Whether 16-bit parameters have f32 originals, which are what is updated. Without them, bf16
  // parameters are rounded stochastically.
  bool master_weights = true;
  DType state_dtype = DType::kF32;  // or kBF16, rounded stochastically: half the memory
  StateOffload offload{};           // whether state is kept on the host
  double ema = 0;                   // decay of averages of the weights; 0: none are kept
};

// torch.optim.AdamW's arithmetic (kernels/adamw/adamw.h). State: ".exp_avg" and ".exp_avg_sq".
class AdamW : public Optimizer {
 public:
  // Throws ArgumentError for options that are out of range or not finite.
  explicit AdamW(std::vector<std::shared_ptr<Parameter>> parameters,
                 const AdamWOptions& options = {})
      : AdamW(std::vector{ParameterGroup{std::move(parameters)}}, options) {}
  explicit AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options = {});

  // For optimizers that leave some of their parameters to AdamW.
  static UpdateRule Rule(double eps, const DecoupledDecay& decay);
};

}  // namespace lockstep::optim
