// A training loop of your own, for a model and data of your own (spirals.h): tells two spirals
// apart.
//
//   bazel run -c opt //models/examples:train_mlp
#include <cstdio>

#include "lockstep/lockstep.h"
#include "models/examples/spirals.h"

using namespace lockstep;

int main() {
  constexpr int64_t kSteps = 600;
  examples::Mlp model(64);
  model.Materialize(kCpu, /*seed=*/1);
  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.01});
  const optim::LrSchedule lr({.lr = 1e-2, .warmup = 20, .decay_steps = kSteps});
  StepState state(kCpu, /*seed=*/1);
  for (int64_t step = 0; step < kSteps; ++step) {
    const examples::Points batch = examples::Spirals(128, /*seed=*/100 + step);
    const auto training = adamw.BeginStep(state, step, lr(step));
    const Tensor loss = ops::SoftmaxCrossEntropy(model(batch.x), batch.labels);
    Backward(loss);
    optim::ClipGradNorm(model.Parameters(), 1.0, state);
    adamw.Step(state);
    model.ZeroGrad();
    if (step % 100 == 0)
      std::printf("step %3ld  loss %.4f\n", static_cast<long>(step), loss.Item());
  }
  const double accuracy = examples::Accuracy(model, examples::Spirals(1000, /*seed=*/7));
  std::printf("accuracy on new points: %.1f%%\n", 100 * accuracy);
  return accuracy > 0.97 ? 0 : 1;
}
