// A 2-64-64-2 MLP in a training loop; small_program.py compares it with PyTorch's.  with_lockstep
// STEPS
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "lockstep/lockstep.h"

using namespace lockstep;

struct Mlp : Layer {
  Mlp() : fc1(this, "fc1", 2, 64), fc2(this, "fc2", 64, 64), head(this, "head", 64, 2) {}
  Tensor Forward(const Tensor& x) override { return head(ops::Relu(fc2(ops::Relu(fc1(x))))); }
  Child<nn::Linear> fc1, fc2, head;
};

int main(int, char** argv) {
  const int64_t steps = std::atoi(argv[1]);
  Mlp model;
  model.Materialize(kCpu, /*seed=*/1);
  optim::AdamW adamw(model.Parameters());
  StepState state(kCpu, /*seed=*/1);
  const Tensor x = ops::Randn({32, 2}, /*seed=*/1);
  const Tensor labels = (x.Slice(1, 0, 1) * x.Slice(1, 1, 2) > 0.0).To(DType::kI32).View({32});
  const auto begin = std::chrono::steady_clock::now();
  double loss = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const auto training = adamw.BeginStep(state, step, /*lr=*/1e-3);
    const Tensor mean = ops::SoftmaxCrossEntropy(model(x), labels);
    Backward(mean);
    adamw.Step(state);
    adamw.ZeroGrad();
    loss = mean.Item();
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  std::printf("%.3f %.6f\n", time.count() / static_cast<double>(steps), loss);
}
