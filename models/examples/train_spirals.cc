// Training over a data set in epochs, in a loop of your own: tells two spirals apart. A diff with
// train_spirals_parallel.cc shows what data parallelism takes.
//
//   bazel run -c opt //models/examples:train_spirals
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lockstep/lockstep.h"
#include "models/examples/spirals.h"

using namespace lockstep;

int main(int argc, char** argv) try {
  constexpr int64_t kEpochs = 20, kSamples = 4096, kBatch = 128;
  examples::Mlp model(64);
  model.Materialize(kCpu, /*seed=*/1);
  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.01});
  const optim::LrSchedule lr(
      {.lr = 1e-2, .warmup = 20, .decay_steps = kEpochs * kSamples / kBatch});
  StepState state(kCpu, /*seed=*/1);
  const examples::Points all = examples::Spirals(kSamples, /*seed=*/100);
  const data::DistributedSampler sampler(kSamples, /*ranks=*/1, /*rank=*/0, {.seed = 1});
  const int64_t share = kBatch;
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = sampler.epoch(epoch);
    double loss_sum = 0;
    for (int64_t i = 0; i < sampler.size(); i += share, ++step) {
      const int64_t n = std::min(share, sampler.size() - i);
      const examples::Points batch = examples::Pick(all, order, i, n);
      const auto training = adamw.BeginStep(state, step, lr(step));
      const Tensor loss = ops::SoftmaxCrossEntropy(model(batch.x), batch.labels, Reduction::kSum);
      Backward(loss, training.Root(1.0 / static_cast<double>(n)));
      optim::ClipGradNorm(model.Parameters(), 1.0, state);
      adamw.Step(state);
      adamw.ZeroGrad();
      loss_sum += loss.Item();
    }
    std::printf("epoch %2d  loss %.4f\n", static_cast<int>(epoch), loss_sum / kSamples);
  }
  const double accuracy = examples::Accuracy(model, examples::Spirals(1000, /*seed=*/7));
  std::printf("accuracy on new points: %.1f%%\n", 100 * accuracy);
  if (argc > 1) nn::SaveModule(model, argv[1]);
  return accuracy > 0.97 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
