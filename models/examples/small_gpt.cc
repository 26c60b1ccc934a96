// A GPT in a loop of your own, on one process. README.md carries it to several, a few lines a step.
//
//   bazel run -c opt //models/examples:small_gpt [FILE]      trains, and saves to FILE
#include <cstdio>
#include <string>

#include "lockstep/lockstep.h"
#include "models/gpt/gpt.h"

using namespace lockstep;

int main(int argc, char** argv) try {
  constexpr int64_t kSteps = 40, kMicroBatches = 4, kRows = 4, kLength = 32;
  constexpr double kTokens = kMicroBatches * kRows * kLength;             // of a step
  const data::Dataset text = data::OpenDataset({.block_size = kLength});  // the embedded corpus
  const models::GptConfig config{.vocab_size = text.vocab_size,
                                 .block_size = kLength,
                                 .n_layer = 4,
                                 .n_head = 4,
                                 .n_embd = 64,
                                 .dropout = 0.1};

  models::Gpt model(config);
  model.Materialize(kCpu, /*seed=*/1);

  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.1});
  const optim::LrSchedule lr({.lr = 3e-3, .warmup = 10, .decay_steps = kSteps});
  StepState state(kCpu, /*seed=*/1);

  const data::Sampler sampler(data::Order::kShuffled, /*seed=*/1, text.train->size(), kLength);
  data::Loader loader(text.train, sampler, {kRows, kMicroBatches});
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto training = adamw.BeginStep(state, step, lr(step));
    double loss = 0;
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
      const data::Batch& batch = loader.Next();
      const Tensor ids = Tensor::FromVector<int32_t>(batch.inputs, {kRows, kLength});
      const Tensor targets = Tensor::FromVector<int32_t>(batch.targets, {kRows, kLength});
      training.SetFirstSample(micro * kRows);
      const Tensor sum = model.Loss(ids, targets);
      Backward(sum, training.Root(1 / kTokens));
      loss += sum.Item() / kTokens;
    }
    optim::ClipGradNorm(adamw.parameters(), 1.0, state);
    adamw.Step(state);
    adamw.ZeroGrad();
    if (step % 10 == 9) {
      std::printf("step %2d  loss %.4f\n", static_cast<int>(step + 1), loss);
    }
  }
  if (argc > 1) dist::SaveTraining(argv[1], nullptr, model, adamw, state);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
