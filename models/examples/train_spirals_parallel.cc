// train_spirals.cc in several processes; a diff of the two shows what data parallelism takes.
//
//   bazel build -c opt //models/examples:train_spirals_parallel
//   export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
//   for r in 0 1; do RANK=$r bazel-bin/models/examples/train_spirals_parallel & done; wait
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
  dist::World world(dist::ReadRendezvous());
  const auto group = world.Group();
  dist::DataParallel parallel(group.get(), model);  // all begin with rank 0's weights
  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.01});
  const optim::LrSchedule lr(
      {.lr = 1e-2, .warmup = 20, .decay_steps = kEpochs * kSamples / kBatch});
  StepState state(kCpu, /*seed=*/1);
  const examples::Points all = examples::Spirals(kSamples, /*seed=*/100);
  const data::DistributedSampler sampler(kSamples, parallel.size(), parallel.rank(), {.seed = 1});
  const int64_t share = kBatch / parallel.size();
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = sampler.epoch(epoch);
    double loss_sum = 0;
    for (int64_t i = 0; i < sampler.size(); i += share, ++step) {
      const int64_t n = std::min(share, sampler.size() - i);
      const examples::Points batch = examples::Pick(all, order, i, n);
      const auto training =
          adamw.BeginStep(state, step, lr(step), {.first_sample = parallel.rank() * n});
      const Tensor loss = ops::SoftmaxCrossEntropy(model(batch.x), batch.labels, Reduction::kSum);
      parallel.Backward(loss, n, training);  // divides by the samples of all ranks
      optim::ClipGradNorm(model.Parameters(), 1.0, state);
      adamw.Step(state);
      adamw.ZeroGrad();
      loss_sum += loss.Item();
    }
    loss_sum = parallel.Sum(loss_sum);
    if (!parallel.is_main()) continue;
    const auto seen = static_cast<double>(sampler.size() * parallel.size());
    std::printf("epoch %2d  loss %.4f\n", static_cast<int>(epoch), loss_sum / seen);
  }
  parallel.CheckWeights("at the end");
  if (!parallel.is_main()) return 0;
  const double accuracy = examples::Accuracy(model, examples::Spirals(1000, /*seed=*/7));
  std::printf("accuracy on new points: %.1f%%\n", 100 * accuracy);
  if (argc > 1) nn::SaveModule(model, argv[1]);
  return accuracy > 0.97 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
