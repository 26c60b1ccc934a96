// small_gpt_data.cc, with the layers cut into stages, each on a rank of its own.
#include <cstdio>
#include <string>

#include "lockstep/lockstep.h"
#include "models/train/pipeline_parallel.h"

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

  dist::World world(dist::ReadRendezvous());
  const auto group = world.Group();
  const dist::Mesh mesh({.pp = world.size()}, world.rank(), world.size());
  const auto pp = world.Group(mesh, {"pp"}), dp = world.Group(mesh, {"dp"});

  models::Gpt model(config);
  const models::MeshGroups groups{.pipeline = pp, .data = dp, .control = group};
  const models::ParallelPlan plan{.micro_batches = kMicroBatches,
                                  .pipeline = models::PipelinePlan{.window = kLength},
                                  .reducer = {{.sum = dist::GradientSum::kOrdered}}};
  models::PipelineParallel::Place(groups, plan, model);
  model.Materialize(kCpu, /*seed=*/1);
  models::PipelineParallel parallel(groups, plan, model);

  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.1});
  const optim::LrSchedule lr({.lr = 3e-3, .warmup = 10, .decay_steps = kSteps});
  StepState state(kCpu, /*seed=*/1);

  const data::Sampler sampler(data::Order::kShuffled, /*seed=*/1, text.train->size(), kLength);
  data::Loader loader(text.train, sampler, {kRows, kMicroBatches, parallel.micro_order()});
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto training = adamw.BeginStep(state, step, lr(step));
    std::vector<data::Batch> batches;
    for (size_t i = 0; i < parallel.micro_order().size(); ++i) batches.push_back(loader.Next());
    double loss = 0;
    for (HostRead& sum : parallel.Gradients(batches, 1 / kTokens, state)) {
      loss += sum.Get().Item() / kTokens;
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
