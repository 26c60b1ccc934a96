// Modules that are recomputed: the same bits for less memory.
#include "nn/recompute.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "nn/activation.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/offload.h"
#include "nn/sequential.h"
#include "nn/transformer_block.h"
#include "nn/vision/batch_norm.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::MessageOf;
using test::RandomTensor;

using Bytes = std::vector<std::vector<double>>;

// Gradients of the parameters, which are emptied.
Bytes TakeGradients(Module& module) {
  Bytes all;
  for (const auto& p : module.Parameters()) {
    const Tensor grad = p->grad();
    all.push_back(grad.defined() ? grad.To(kCpu).To(DType::kF64).ToVector<double>()
                                 : std::vector<double>());
  }
  module.ZeroGrad();
  return all;
}

// ---- The blocks of a transformer. ----

enum class Part { kNone, kBlock, kAttention, kMlp, kOps, kOffload, kOffloadBlock };

// `layers` blocks and the norm behind them, as in a model.
struct Stack : ModuleOf<Tensor(const Tensor&)> {
  Stack(int64_t layers, const TransformerOptions& options, Part part) {
    for (int64_t i = 0; i < layers; ++i) {
      const auto block = std::make_shared<TransformerBlock>(options);
      if (part == Part::kAttention) RecomputeChild(block->attn());
      if (part == Part::kMlp) RecomputeChild(block->mlp());
      std::shared_ptr<Block> item = block;
      if (part == Part::kBlock) item = Recompute(block, {.stops_early = true});
      if (part == Part::kOffloadBlock) item = Recompute(block, {.stops_early = i % 2 == 0});
      if (part == Part::kOffload || part == Part::kOffloadBlock) item = Offload(item, offloader);
      if (part == Part::kOps) {
        item = Recompute(block, {.ops = {"gelu", "layer_norm", "swiglu", "rms_norm"}});
      }
      h.Add(item);
    }
    ln_f = std::make_unique<Child<ResidualNormLayer>>(
        this, "ln_f",
        std::make_shared<ResidualNorm>(options.n_embd, NormOptions{options.norm, options.bias}));
  }
  Tensor Forward(const Tensor& x) override {
    ResidualStream stream = x;
    for (int64_t i = 0; i < h.size(); ++i) stream = h[i](std::move(stream));
    return (*ln_f)(stream).second;
  }
  const std::shared_ptr<Offloader> offloader = std::make_shared<Offloader>();
  ChildList<Block> h{this, "h"};
  std::unique_ptr<Child<ResidualNormLayer>> ln_f;
};

constexpr int64_t kBatch = 2, kLength = 16, kTokens = kBatch * kLength;

TransformerOptions Gpt2(double dropout) {
  return {.n_embd = 24, .n_head = 3, .dropout = dropout, .init_std = 0.3, .residual_std = 0.3};
}
TransformerOptions Llama(double dropout) {
  TransformerOptions options = Gpt2(dropout);
  options.bias = false;
  options.n_head = 4;
  options.n_kv_head = 2;
  options.n_inner = 40;
  options.norm = NormKind::kRmsNorm;
  options.activation = MlpActivation::kSwiGlu;
  options.rotary = std::make_shared<Rotary>(6, RotaryOptions{});
  return options;
}

TransformerOptions Qwen3(double dropout) {
  TransformerOptions options = Llama(dropout);
  options.head_dim = 8;  // more than n_embd / n_head
  options.qk_norm = nn::QkNorm::kHead;
  options.rotary = std::make_shared<Rotary>(8, RotaryOptions{});
  return options;
}

class RecomputedBlocks : public test::DeviceTest {
 protected:
  struct Run {
    std::vector<double> y, dx;
    Bytes gradients;
    int64_t kept = 0;  // bytes, by forward
    int64_t peak = 0;  // bytes above what is always there
    int64_t on_host = 0;
    bool operator==(const Run& o) const {
      return y == o.y && dx == o.dx && gradients == o.gradients;
    }
  };

  // A micro-batch in a step. Its random numbers are those of forward, whatever happens until
  // backward.
  Run Train(const TransformerOptions& options, Part part, DType dtype, int64_t layers = 2) {
    const Device device = GetParam();
    Stack stack(layers, options, part);
    stack.Materialize(device, 5, dtype);
    StepState state(device, 3);
    Run run;
    const auto once = [&] {
      Tensor x = RandomTensor({kBatch, kLength, options.n_embd}, 1).To(dtype).To(device);
      x.SetRequiresGrad();
      const Tensor dy = RandomTensor(x.shape(), 2).To(dtype).To(device);
      const TrainingScope training(state);
      state.SetFirstSample(4);
      Allocator& allocator = GetAllocator(device);
      const int64_t before = allocator.stats().live_bytes;
      allocator.ResetPeak();
      const Tensor y = stack(x);
      run.kept = allocator.stats().live_bytes - before;
      run.on_host = stack.offloader->host_bytes();
      state.SetFirstSample(8);
      Backward(y, dy);
      run.peak = allocator.stats().peak_bytes - before;
      run.y = y.To(kCpu).To(DType::kF64).ToVector<double>();
      run.dx = x.grad().To(kCpu).To(DType::kF64).ToVector<double>();
    };
    once();  // makes what stays: tables of rotations, gradients
    once();
    run.gradients = TakeGradients(stack);
    return run;
  }
};

TEST_P(RecomputedBlocks, HaveTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& options : {Gpt2(0.2), Llama(0.1), Qwen3(0.1)}) {
      const Run plain = Train(options, Part::kNone, dtype);
      for (const Part part : {Part::kBlock, Part::kAttention, Part::kMlp, Part::kOps,
                              Part::kOffload, Part::kOffloadBlock}) {
        EXPECT_EQ(Train(options, part, dtype), plain)
            << dtype << ", part " << static_cast<int>(part);
      }
    }
  }
}

// Bytes of a block's forward in f32, per token: C the width, Q that of queries, K that of keys, F
// that of the MLP.
//   the sum and its norm, twice: 4 * 4 C; their statistics: 2 s; q, k, v: 4 (Q + 2 K); the heads'
//   results: 4 Q, and a number per head: 4 H; with norms of q and k what these take, 4 (Q + K), and
//   a number per head; what the MLP's activation takes and gives: 4 (I + F).
struct Formula {
  int64_t c, head, q, k, h, normed, f, in, statistics;
  explicit Formula(const TransformerOptions& o)
      : c(o.n_embd),
        head(o.head_dim > 0 ? o.head_dim : o.n_embd / o.n_head),
        q(head * o.n_head),
        k(o.n_kv_head > 0 ? head * o.n_kv_head : q),
        h(o.n_head),
        normed(o.qk_norm == QkNorm::kHead ? q + k + (q + k) / head : 0),
        f(o.n_inner > 0 ? o.n_inner : 4 * o.n_embd),
        in(o.activation == MlpActivation::kSwiGlu ? 2 * f : f),
        statistics(o.norm == NormKind::kLayerNorm ? 8 : 4) {}
  int64_t attention() const { return 4 * (q + 2 * k) + 4 * q + 4 * h + 4 * normed; }
  int64_t mlp() const { return 4 * (in + f); }
  int64_t block() const { return 16 * c + 2 * statistics + attention() + mlp(); }
  // All but a sum and its statistics.
  int64_t freed_by_block() const { return block() - 4 * c - statistics; }
};

TEST_P(RecomputedBlocks, KeepWhatTheFormulaSays) {
  constexpr int64_t kLayers = 4;
  for (const auto& options : {Gpt2(0), Llama(0), Qwen3(0)}) {
    const Formula formula(options);
    const Run plain = Train(options, Part::kNone, DType::kF32, kLayers);
    const auto freed = [&](Part part) {
      return plain.kept - Train(options, part, DType::kF32, kLayers).kept;
    };
    constexpr int64_t kAll = kLayers * kTokens;
    EXPECT_EQ(freed(Part::kBlock), kAll * formula.freed_by_block());
    EXPECT_EQ(freed(Part::kAttention), kAll * formula.attention());
    EXPECT_EQ(freed(Part::kMlp), kAll * formula.mlp());
    const bool fused = options.activation == MlpActivation::kGelu;
    // Where GELU is the end of a product on a GPU, its result stays.
    const int64_t activation = fused && GetParam().is_cuda() ? 0 : 4 * formula.f;
    EXPECT_EQ(freed(Part::kOps), kAll * (8 * formula.c + activation));
  }
}

// While a block's backward runs, that block's activations are there, and the others' are not.
TEST_P(RecomputedBlocks, LowerThePeakByAllBlocksButOne) {
  constexpr int64_t kLayers = 8;
  for (const auto& options : {Gpt2(0), Llama(0)}) {
    const Run plain = Train(options, Part::kNone, DType::kF32, kLayers);
    const Run recomputed = Train(options, Part::kBlock, DType::kF32, kLayers);
    const auto freed =
        static_cast<double>((kLayers - 1) * kTokens * Formula(options).freed_by_block());
    EXPECT_NEAR(static_cast<double>(plain.peak - recomputed.peak), freed, 0.05 * freed);
  }
}

// Of all blocks but the last, whose backward comes at once.
TEST_P(RecomputedBlocks, OffloadKeepsTheLastBlockOnTheDevice) {
  constexpr int64_t kLayers = 8;
  for (const auto& options : {Gpt2(0), Llama(0)}) {
    const Formula formula(options);
    const Run plain = Train(options, Part::kNone, DType::kF32, kLayers);
    const Run offloaded = Train(options, Part::kOffload, DType::kF32, kLayers);
    const Run recomputed = Train(options, Part::kBlock, DType::kF32, kLayers);
    const Run both = Train(options, Part::kOffloadBlock, DType::kF32, kLayers);
    if (GetParam().is_cpu()) {
      EXPECT_EQ(offloaded.kept, plain.kept);
      EXPECT_EQ(offloaded.on_host, 0);
      continue;
    }
    // The first block's sum is its input; statistics are too small to be moved.
    const int64_t sums = (kLayers - 2) * kTokens * 4 * formula.c;
    const int64_t moved =
        (kLayers - 1) * kTokens *
            (formula.block() - 2 * formula.statistics - 4 * formula.h - 4 * formula.c) +
        sums;
    EXPECT_EQ(offloaded.on_host, moved);
    EXPECT_EQ(plain.kept - offloaded.kept, moved);
    EXPECT_EQ(both.on_host, sums);
    EXPECT_EQ(recomputed.kept - both.kept, sums);
    // In backward there is another block's, on its way.
    const double one = static_cast<double>(moved - sums) / (kLayers - 1) + 4.0 * formula.c;
    EXPECT_NEAR(static_cast<double>(plain.peak - offloaded.peak), static_cast<double>(moved) - one,
                0.1 * static_cast<double>(moved));
  }
}

// The host's memory is not that of each length by itself.
TEST_P(RecomputedBlocks, OffloadKeepsItsHostMemoryWhereLengthsVary) {
  if (GetParam().is_cpu()) return;
  const TransformerOptions options = Gpt2(0);
  const auto kept_after = [&](const std::vector<int64_t>& lengths) {
    Stack stack(3, options, Part::kOffload);
    stack.Materialize(GetParam(), 5);
    for (const int64_t length : lengths) {
      Tensor x = RandomTensor({1, length, options.n_embd}, 1).To(DType::kF32).To(GetParam());
      x.SetRequiresGrad();
      const Tensor y = stack(x);
      Backward(y, y.Detach());
      EXPECT_EQ(stack.offloader->host_bytes(), 0);
    }
    return stack.offloader->kept_host_bytes();
  };
  std::vector<int64_t> growing, shrinking;
  for (int64_t length = 8; length <= 64; length += 4) growing.push_back(length);
  shrinking.assign(growing.rbegin(), growing.rend());
  const int64_t longest = kept_after({64});
  EXPECT_GT(longest, 0);
  EXPECT_EQ(kept_after({64, 64}), longest);
  EXPECT_EQ(kept_after(shrinking), longest);
  EXPECT_LE(kept_after(growing), 4 * longest);
}

INSTANTIATE_TEST_SUITE_P(Devices, RecomputedBlocks, test::Devices(),
                         [](const auto& info) { return info.param.is_cpu() ? "cpu" : "gpu"; });

// ---- Other modules. ----

// On both sides of a siamese network: two masks of one layer, in one micro-batch.
TEST(RecomputeTest, ALayerThatRunsTwiceHasBothItsMasks) {
  const auto train = [](bool recompute) {
    std::shared_ptr<Layer> layer =
        std::make_shared<Sequential>(std::initializer_list<std::shared_ptr<Layer>>{
            std::make_shared<Linear>(5, 6), std::make_shared<Dropout>(0.5),
            std::make_shared<Tanh>(), std::make_shared<Dropout>(0.3)});
    if (recompute) layer = Recompute(layer);
    Sequential model({layer});
    model.Materialize(kCpu, 1, DType::kF64);
    StepState state(kCpu, 4);
    Tensor loss;
    {
      const TrainingScope training(state);
      const Tensor a = model(RandomTensor({3, 5}, 1)), b = model(RandomTensor({3, 5}, 2));
      EXPECT_NE(a.ToVector<double>(), b.ToVector<double>());
      loss = test::Project(model(RandomTensor({3, 5}, 3)));
      // A backward in between does not disturb the others.
      Backward(test::Project(b));
      Backward(test::Project(a));
    }
    // Also after the step.
    Backward(loss);
    return TakeGradients(model);
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(RecomputeTest, NestedRecomputationHasTheMasksOfForward) {
  const auto train = [](bool recompute) {
    std::shared_ptr<Layer> inner =
        std::make_shared<Sequential>(std::initializer_list<std::shared_ptr<Layer>>{
            std::make_shared<Linear>(5, 5), std::make_shared<Dropout>(0.5)});
    if (recompute) inner = Recompute(inner);
    std::shared_ptr<Layer> outer =
        std::make_shared<Sequential>(std::initializer_list<std::shared_ptr<Layer>>{
            std::make_shared<Dropout>(0.2), inner, std::make_shared<Tanh>()});
    if (recompute) outer = Recompute(outer);
    Sequential model({outer});
    model.Materialize(kCpu, 1, DType::kF64);
    StepState state(kCpu, 4);
    const TrainingScope training(state);
    const Tensor y = test::Project(model(RandomTensor({3, 5}, 1)));
    state.SetFirstSample(3);
    model(RandomTensor({3, 5}, 2));
    Backward(y);
    return TakeGradients(model);
  };
  EXPECT_EQ(train(true), train(false));
}

// Weight gradients ahead of those of inputs, as for observers, or after all of them.
TEST(RecomputeTest, WeightGradientsMayComeFirstOrLast) {
  struct Quiet : BackwardObserver {};
  const auto train = [](Part part, bool first, bool last) {
    Stack stack(2, Gpt2(0.2), part);
    stack.Materialize(kCpu, 1, DType::kF64);
    StepState state(kCpu, 4);
    const TrainingScope training(state);
    Tensor x = RandomTensor({2, 8, 24}, 1);
    const Tensor loss = test::Project(stack(x.SetRequiresGrad()));
    Quiet observer;
    DeferredGradients later;
    BackwardOptions options;
    if (first) options.observers = {&observer};
    if (last) {
      options.defer = [&](const Leaf& leaf) { return leaf.name() != "unnamed"; };
      options.deferred = &later;
    }
    Backward(loss, {}, options);
    later.Run();
    Bytes all = TakeGradients(stack);
    all.push_back(x.grad().ToVector<double>());
    return all;
  };
  const Bytes plain = train(Part::kNone, false, false);
  for (const Part part : {Part::kBlock, Part::kAttention, Part::kMlp, Part::kOps}) {
    EXPECT_EQ(train(part, true, false), plain) << static_cast<int>(part);
    EXPECT_EQ(train(part, false, true), plain) << static_cast<int>(part);
  }
}

// Whatever is recomputed within it, as part of it, or around it.
TEST(RecomputeTest, OperationsAndModulesMix) {
  const auto train = [](int how) {
    const auto block = std::make_shared<TransformerBlock>(Gpt2(0.2));
    const std::vector<std::string> ops = {"gelu", "layer_norm"};
    if (how == 1 || how == 3) RecomputeChild(block->mlp());
    std::shared_ptr<Block> item = block;
    if (how == 1 || how == 2) item = Recompute(item, {.ops = ops});
    if (how == 2 || how == 3) item = Recompute(item);
    item->Materialize(kCpu, 1, DType::kF64);
    StepState state(kCpu, 4);
    const TrainingScope training(state);
    Tensor x = RandomTensor({2, 8, 24}, 1);
    const ResidualStream y = (*item)((*item)(x.SetRequiresGrad()));
    Backward(test::Project(Complete(y)));
    return TakeGradients(*item);
  };
  const Bytes plain = train(0);
  for (const int how : {1, 2, 3}) EXPECT_EQ(train(how), plain) << how;
}

// Before anything is trained.
TEST(RecomputeTest, NamesThatNoOperationHasAreErrors) {
  const auto block = std::make_shared<TransformerBlock>(Gpt2(0));
  for (const std::string wrong : {"misspelt", "linear", "relu", "exp", ""}) {
    const std::string error = MessageOf<ArgumentError>([&] {
      Recompute(block, {.ops = {"layer_norm", wrong}});
    });
    EXPECT_THAT(error, testing::HasSubstr("'" + wrong + "'"));
    for (const char* known :
         {"gelu", "geglu_tanh", "layer_norm", "relu2", "rms_norm", "silu", "swiglu"}) {
      EXPECT_THAT(error, testing::HasSubstr(known));
      EXPECT_NO_THROW(Recompute(block, {.ops = {known}}));
    }
  }
}

// A forward that is only recomputed is no second batch.
TEST(RecomputeTest, RunningStatisticsAreUpdatedOnce) {
  const auto train = [](bool recompute) {
    std::shared_ptr<Layer> layer =
        std::make_shared<Sequential>(std::initializer_list<std::shared_ptr<Layer>>{
            std::make_shared<Linear>(5, 6), std::make_shared<BatchNorm1d>(6),
            std::make_shared<Gelu>()});
    if (recompute) layer = Recompute(layer);
    Sequential model({layer, std::make_shared<Linear>(6, 2)});
    model.Materialize(kCpu, 1, DType::kF64);
    StepState state(kCpu, 4);
    const TrainingScope training(state);
    Backward(test::Project(model(RandomTensor({7, 5}, 1))));
    Bytes all = TakeGradients(model);
    for (const auto& [name, buffer] : model.NamedBuffers()) {
      all.push_back(buffer.To(DType::kF64).ToVector<double>());
    }
    EXPECT_EQ(all.back(), std::vector<double>{1}) << "num_batches_tracked";
    return all;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(RecomputeTest, NothingHappensWithoutGradients) {
  int runs = 0;
  struct Counting : Layer {
    explicit Counting(int* runs) : runs(runs) {}
    Tensor Forward(const Tensor& x) override {
      ++*runs;
      return x;
    }
    int* runs;
  };
  const auto layer = Recompute(std::make_shared<Counting>(&runs));
  Tensor x = RandomTensor({2}, 1);
  EXPECT_EQ((*layer)(x).raw_data(), x.raw_data());
  // A module that hands on its input, or saves nothing.
  x.SetRequiresGrad();
  Backward(test::Project((*layer)(x)));
  EXPECT_EQ(runs, 2);
  EXPECT_THAT(MessageOf([] { Recompute(std::shared_ptr<Linear>()); }),
              testing::HasSubstr("not null"));
}

// The graph keeps what it needs.
TEST(RecomputeTest, TheModuleMayBeGoneByBackward) {
  Bytes want;
  for (const bool recompute : {false, true}) {
    Tensor x = RandomTensor({3, 5}, 1);
    x.SetRequiresGrad();
    Tensor loss;
    {
      std::shared_ptr<Layer> layer =
          std::make_shared<Sequential>(std::initializer_list<std::shared_ptr<Layer>>{
              std::make_shared<Linear>(5, 6), std::make_shared<Gelu>()});
      if (recompute) layer = Recompute(layer);
      layer->Materialize(kCpu, 1, DType::kF64);
      loss = test::Project((*layer)(x));
    }
    Backward(loss);
    want.push_back(x.grad().ToVector<double>());
  }
  EXPECT_EQ(want[0], want[1]);
}

TEST(RecomputeTest, NamesAndChildrenAreThoseOfTheModule) {
  const auto block = std::make_shared<TransformerBlock>(Gpt2(0));
  const auto names = test::Describe(*block);
  const auto recomputed = Recompute(block);
  EXPECT_EQ(test::Describe(*recomputed), names);
  RecomputeChild(block->mlp());
  EXPECT_EQ(test::Describe(*recomputed), names);
  recomputed->ReplaceChild("mlp.c_fc", std::make_shared<Linear>(24, 96));
  EXPECT_EQ(test::Describe(*recomputed), names);
  // A plain layer in the place of a branch.
  block->ReplaceChild("attn", std::make_shared<Linear>(24, 24));
  RecomputeChild(block->attn());
  recomputed->Materialize(kCpu, 1);
  EXPECT_EQ((*recomputed)(RandomTensor({1, 2, 24}, 1, DType::kF32)).x.shape(), Shape({1, 2, 24}));
}

}  // namespace
}  // namespace lockstep::nn
