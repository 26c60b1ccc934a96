// AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019).
#pragma once

#include "optim/optimizer.h"

namespace lockstep::optim {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // of parameters with decay(); the others have none
  bool master_weights = true;  // of 16-bit parameters: f32 originals, which are what is updated
};

// torch.optim.AdamW's arithmetic (kernels/adamw/adamw.h). State, on the parameters' devices:
// "<parameter>.exp_avg" and ".exp_avg_sq", zero at first, of f32 (f64 for f64 parameters); for
// 16-bit parameters with master_weights also ".master", at first the value. A parameter without a
// gradient is left alone. Results depend neither on the order of the parameters nor on the number
// of threads.
class AdamW : public Optimizer {
 public:
  // Throws ArgumentError for options that are out of range or not finite.
  explicit AdamW(std::vector<std::shared_ptr<Parameter>> parameters,
                 const AdamWOptions& options = {});

  const AdamWOptions& options() const { return options_; }

  const char* name() const override { return "AdamW"; }
  NamedTensors NamedState() const override;

 protected:
  Betas betas() const override { return {options_.beta1, options_.beta2}; }
  bool keeps_masters() const override { return options_.master_weights; }
  void Update(const StepState& state) override;

 private:
  friend class Muon;
  struct Moments {
    Tensor exp_avg, exp_avg_sq, master;
  };

  AdamWOptions options_;
  std::vector<Moments> moments_;  // as parameters()
};

}  // namespace lockstep::optim
