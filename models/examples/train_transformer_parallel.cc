// A small transformer in a loop of your own, in bf16, saved and continued: each rank has all of it.
// The diff of train_transformer_parallel.cc and train_transformer_sharded.cc shows what it takes to
// train a model that is too large for one rank.
//
//   bazel build -c opt //tools:launch //models/examples/... && cd bazel-bin
//   tools/launch --nproc=2 -- models/examples/train_transformer_parallel [FILE [STEPS]]
//
// Continues from FILE if it is there, and saves to it. FILE has the same bits on one, two and four
// ranks, whichever of the two programs wrote it.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/lockstep.h"

using namespace lockstep;

// The model: the sum of the cross entropies of targets i32 [B, T] that follow ids i32 [B, T].
class Transformer : public ModuleOf<Tensor(const Tensor& ids, const Tensor& targets)> {
 public:
  Transformer(int64_t vocabulary, int64_t layers, const nn::TransformerOptions& options)
      : embed_(this, "embed",
               std::make_shared<nn::Embedding>(vocabulary, options.n_embd, nn::Normal(0, 0.02))),
        norm_(this, "norm", std::make_shared<nn::LayerNorm>(options.n_embd)),
        head_(this, "head",
              std::make_shared<nn::LmHead>(options.n_embd, vocabulary, nn::Normal(0, 0.02), 0)) {
    for (int64_t i = 0; i < layers; ++i) {
      blocks_.Add(std::make_shared<nn::TransformerBlock>(options));
    }
  }

 protected:
  Tensor Forward(const Tensor& ids, const Tensor& targets) override {
    nn::ResidualStream stream = embed_(ids);
    for (int64_t i = 0; i < blocks_.size(); ++i) stream = blocks_[i](std::move(stream));
    return head_(norm_(Complete(stream)), targets);
  }

 private:
  Child<Layer> embed_;
  ChildList<nn::Block> blocks_{this, "blocks"};
  Child<Layer> norm_;
  Child<nn::LmHeadLayer> head_;
};

int main(int argc, char** argv) try {
  constexpr int64_t kLength = 32, kRows = 4, kMicroBatches = 4;  // of a step, on all ranks together
  const std::string file = argc > 1 ? argv[1] : "";
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : 120;

  const data::Dataset text = data::OpenDataset({.block_size = kLength});  // the embedded corpus
  const nn::TransformerOptions options{
      .n_embd = 64, .n_head = 4, .rotary = std::make_shared<nn::Rotary>(16, RotaryOptions{})};
  Transformer model(text.vocab_size, /*layers=*/3, options);
  // Weights and activations are bf16; gradients, and what the optimizer keeps, f32.
  nn::Materialize(model, kCpu, /*seed=*/1, {.compute = DType::kBF16});

  dist::World world(dist::ReadRendezvous());
  const auto group = world.Group();
  dist::DataParallel parallel(  // the sum of all ranks' gradients is on each
      group.get(), model, {.sum = dist::GradientSum::kOrdered, .micro_batches = kMicroBatches});

  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.1});
  const optim::LrSchedule lr({.lr = 3e-3, .warmup = 10, .decay_steps = 120});
  StepState state(kCpu, /*seed=*/1);
  int64_t step = 0;
  if (PathExists(file)) step = dist::LoadTraining(file, model, adamw, state);

  const data::Sampler sampler(data::Order::kShuffled, /*seed=*/1, text.train->size(), kLength);
  data::Loader loader(text.train, sampler, {kRows, kMicroBatches, parallel.micro_order()}, step);
  for (; step < steps; ++step) {
    const auto training = adamw.BeginStep(state, step, lr(step));
    double loss = 0;
    for (const int64_t micro : parallel.micro_order()) {
      const data::Batch& batch = loader.Next();
      const Tensor ids = Tensor::FromVector<int32_t>(batch.inputs, {kRows, kLength});
      const Tensor targets = Tensor::FromVector<int32_t>(batch.targets, {kRows, kLength});
      training.SetFirstSample(micro * kRows);
      const Tensor sum = model(ids, targets);
      loss += sum.Item() / parallel.Backward(sum, kRows * kLength, training);
    }
    optim::ClipGradNorm(adamw.parameters(), 1.0, state);
    adamw.Step(state);
    adamw.ZeroGrad();
    loss = parallel.Sum(loss);
    const bool last = step + 1 == steps;
    if (parallel.is_main() && (step % 20 == 0 || last)) {
      std::printf("step %3d  loss %.4f\n", static_cast<int>(step), loss);
    }
    if (!file.empty() && ((step + 1) % 50 == 0 || last)) {
      dist::SaveTraining(file, parallel, model, adamw, state);
    }
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
