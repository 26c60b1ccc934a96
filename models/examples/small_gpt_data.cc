// small_gpt.cc made data parallel: each rank has some of a step's micro-batches.
#include <cstdio>
#include <string>

#include "lockstep/lockstep.h"
#include "models/gpt/gpt.h"

using namespace lockstep;

int main(int argc, char** argv) try {
  constexpr int64_t kSteps = 40, kMicroBatches = 4, kRows = 4, kLength = 32;
  const data::Dataset text = data::OpenDataset({.block_size = kLength});  // the embedded corpus
  const models::GptConfig config{.vocab_size = text.vocab_size,
                                 .block_size = kLength,
                                 .n_layer = 4,
                                 .n_head = 4,
                                 .n_embd = 64,
                                 .dropout = 0.1};

  dist::World world(dist::ReadRendezvous());
  const auto group = world.Group();

  models::Gpt model(config);
  model.Materialize(kCpu, /*seed=*/1);
  dist::DataParallel parallel(  // each rank has all of the model
      group.get(), model, {.sum = dist::GradientSum::kOrdered, .micro_batches = kMicroBatches});

  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.1});
  const optim::LrSchedule lr({.lr = 3e-3, .warmup = 10, .decay_steps = kSteps});
  StepState state(kCpu, /*seed=*/1);

  const data::Sampler sampler(data::Order::kShuffled, /*seed=*/1, text.train->size(), kLength);
  data::Loader loader(text.train, sampler, {kRows, kMicroBatches, parallel.micro_order()});
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto training = adamw.BeginStep(state, step, lr(step));
    double loss = 0;
    for (const int64_t micro : parallel.micro_order()) {
      const data::Batch& batch = loader.Next();
      const Tensor ids = Tensor::FromVector<int32_t>(batch.inputs, {kRows, kLength});
      const Tensor targets = Tensor::FromVector<int32_t>(batch.targets, {kRows, kLength});
      training.SetFirstSample(micro * kRows);
      const Tensor sum = model.Loss(ids, targets);
      loss += sum.Item() / parallel.Backward(sum, kRows * kLength, training);
    }
    optim::ClipGradNorm(adamw.parameters(), 1.0, state);
    adamw.Step(state);
    adamw.ZeroGrad();
    loss = parallel.Sum(loss);
    if (world.rank() == 0 && step % 10 == 9) {
      std::printf("step %2d  loss %.4f\n", static_cast<int>(step + 1), loss);
    }
  }
  if (argc > 1) dist::SaveTraining(argv[1], group.get(), model, adamw, state);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
