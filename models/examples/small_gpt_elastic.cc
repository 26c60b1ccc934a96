// small_gpt_data.cc that goes on without ranks that end, and takes them in again.
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

  // What outlives a world of ranks.
  models::Gpt model(config);
  model.Materialize(kCpu, /*seed=*/1);
  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.1});
  const optim::LrSchedule lr({.lr = 3e-3, .warmup = 10, .decay_steps = kSteps});
  StepState state(kCpu, /*seed=*/1);
  const data::Sampler sampler(data::Order::kShuffled, /*seed=*/1, text.train->size(), kLength);
  int64_t step = -1;  // that this rank has made; -1: it has just been started
  bool whole = true;  // the model and the optimizer are those of that step

  const auto membership = dist::Membership::Find();
  if (!membership) throw Error("start it by launch --elastic --nproc=2 -- small_gpt_elastic");
  std::vector<int> lost;  // ranks of the last world
  while (const auto place = membership->Join({.step = step, .lost = lost})) {
    lost.clear();
    try {
      dist::World world(place->rendezvous, {.gives_up = [&] { return membership->is_broken(); }});
      const auto group = world.Group();
      // Rank 0 is one that has come furthest. The others have its state before they go on.
      const int64_t furthest = dist::GatherValues(*group, std::span(&step, 1))[0][0];
      whole = step == furthest;
      dist::DataParallel parallel(  // each rank has all of the model: rank 0's
          group.get(), model, {.sum = dist::GradientSum::kOrdered, .micro_batches = kMicroBatches});
      dist::ShareOptimizer(*group, adamw);
      step = std::max<int64_t>(furthest, 0);
      whole = true;

      data::Loader loader(text.train, sampler, {kRows, kMicroBatches, parallel.micro_order()},
                          step);
      bool summoned = false;  // another rank waits to be taken in
      while (step < kSteps && !summoned) {
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
        // All that ranks sum comes before the update: so each makes all of a step, or nothing of
        // it.
        loss = parallel.Sum(loss);
        summoned = parallel.Sum(int64_t{membership->is_summoned()}) > 0;
        optim::ClipGradNorm(adamw.parameters(), 1.0, state);
        adamw.Step(state);
        adamw.ZeroGrad();
        ++step;
        if (world.rank() == 0 && step % 10 == 0) {
          std::printf("step %2d  loss %.4f\n", static_cast<int>(step), loss);
        }
      }
      if (step < kSteps) continue;
      if (argc > 1) dist::SaveTraining(argv[1], group.get(), model, adamw, state);
      return 0;
    } catch (const dist::CollectiveError& e) {
      if (!whole) throw;  // the launcher starts another process
      lost = e.culprits();
      adamw.ZeroGrad();
    } catch (const dist::ConnectionError&) {  // a rank ended before all had met
    }
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
