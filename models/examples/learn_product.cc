// The program of the README: an MLP learns to multiply two numbers.
//
//   bazel run -c opt //models/examples:learn_product
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

struct Mlp : Layer {
  explicit Mlp(int64_t hidden) : fc(this, "fc", 2, hidden), head(this, "head", hidden, 1) {}
  Tensor Forward(const Tensor& x) override { return head(ops::Relu(fc(x))); }
  Child<nn::Linear> fc, head;
};

int main() {
  Mlp model(64);
  model.Materialize(kCpu, /*seed=*/1);
  optim::AdamW adamw(model.Parameters());
  StepState state(kCpu, /*seed=*/1);
  for (int64_t step = 0; step < 1000; ++step) {
    const Tensor x = ops::Rand({64, 2}, /*seed=*/step);
    const auto training = adamw.BeginStep(state, step, /*lr=*/1e-2);
    const Tensor loss = ops::MseLoss(model(x), x.Slice(1, 0, 1) * x.Slice(1, 1, 2));
    Backward(loss);
    adamw.Step(state);
    adamw.ZeroGrad();
    if (step % 100 == 99) std::cout << step + 1 << "  " << loss << "\n";
  }
}
