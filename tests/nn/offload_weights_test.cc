// Weights of blocks that wait in host memory: the same bits in the memory of two blocks.
#include "nn/offload_weights.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_mode.h"
#include "core/step_state.h"
#include "nn/linear.h"
#include "nn/offload.h"
#include "nn/recompute.h"
#include "nn/state.h"
#include "nn/transformer_block.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::nn {
namespace {

using test::kGpu;
using test::MessageOf;
using test::RandomTensor;
using testing::HasSubstr;

struct How {
  bool offload = true;
  bool recompute = false, activations = false;
};

constexpr int64_t kWidth = 24;

TransformerOptions Options() {
  return {.n_embd = kWidth, .n_head = 3, .dropout = 0.2, .init_std = 0.3, .residual_std = 0.3};
}

// Blocks as in a model.
struct Stack : ModuleOf<Tensor(const Tensor&)> {
  Stack(int64_t layers, const How& how) {
    std::vector<std::shared_ptr<Block>> blocks;
    for (int64_t i = 0; i < layers; ++i) {
      std::shared_ptr<Block> block = std::make_shared<TransformerBlock>(Options());
      if (how.recompute) block = Recompute(block);
      if (how.activations) block = Offload(block, offloader);
      blocks.push_back(block);
      h.Add(block);
    }
    if (how.offload) OffloadWeights(blocks);
  }
  Tensor Forward(const Tensor& x) override {
    ResidualStream stream = x;
    for (int64_t i = 0; i < h.size(); ++i) stream = h[i](std::move(stream));
    return Complete(stream);
  }
  const std::shared_ptr<Offloader> offloader = std::make_shared<Offloader>();
  ChildList<Block> h{this, "h"};
};

Tensor Input(int seed, DType dtype = DType::kF32) {
  return RandomTensor({2, 16, kWidth}, seed).To(dtype).To(kGpu);
}

using Values = std::vector<std::vector<double>>;

std::vector<double> ToValues(const Tensor& x) {
  return x.Detach().To(kCpu).To(DType::kF64).ToVector<double>();
}

// A step's loss and gradients, of two micro-batches, whose weights are changed between two steps.
Values Train(Stack& stack, DType dtype) {
  StepState state(kGpu, 3);
  Values all;
  for (int step = 0; step < 2; ++step) {
    const TrainingScope training(state);
    for (int micro = 0; micro < 2; ++micro) {
      state.SetFirstSample(2 * micro);
      const Tensor y = stack(Input(micro, dtype));
      all.push_back(ToValues(y));
      Backward(y, Input(5, dtype));
    }
    for (const auto& p : stack.Parameters()) {
      EXPECT_EQ(p->grad().device(), kGpu);
      all.push_back(ToValues(p->grad()));
      const Tensor value = p->value().Detach();
      value.CopyFrom(RandomTensor(value.shape(), 7 + step));
    }
    stack.ZeroGrad();
    const NoGrad no_grad;
    all.push_back(ToValues(stack(Input(8, dtype))));
  }
  return all;
}

class OffloadedWeights : public test::GpuTest {};

TEST_F(OffloadedWeights, HaveTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Values plain;
    for (const How how : {How{.offload = false}, How{}, How{.recompute = true},
                          How{.activations = true}, How{.recompute = true, .activations = true}}) {
      Stack stack(4, how);
      stack.Materialize(kGpu, 5, dtype);
      const Values values = Train(stack, dtype);
      if (plain.empty()) plain = values;
      EXPECT_TRUE(values == plain) << dtype << how.recompute << how.activations;
    }
  }
}

// A model that is in memory already when its weights are offloaded, and one of a single block.
TEST_F(OffloadedWeights, MayBeMadeAfterMaterialize) {
  for (const int64_t layers : {1, 3}) {
    Stack plain(layers, {.offload = false}), later(layers, {.offload = false});
    for (Stack* stack : {&plain, &later}) stack->Materialize(kGpu, 5);
    std::vector<std::shared_ptr<Module>> blocks;
    for (int64_t i = 0; i < layers; ++i) blocks.push_back(later.h[i].module());
    OffloadWeights(blocks);
    EXPECT_EQ(Train(later, DType::kF32), Train(plain, DType::kF32));
    // And materialised once more.
    for (Stack* stack : {&plain, &later}) stack->Materialize(kGpu, 6);
    EXPECT_EQ(Train(later, DType::kF32), Train(plain, DType::kF32));
  }
}

TEST_F(OffloadedWeights, TakeTheMemoryOfTwoBlocks) {
  constexpr int64_t kLayers = 6;
  Allocator& allocator = GetAllocator(kGpu);
  struct Peaks {
    int64_t idle, forward, backward, evaluation;
  };
  const auto train = [&](bool offload) {
    Stack stack(kLayers, {.offload = offload});
    const int64_t before = allocator.stats().live_bytes;
    stack.Materialize(kGpu, 5);
    Peaks peaks{};
    peaks.idle = allocator.stats().live_bytes - before;
    for (int i = 0; i < 2; ++i) {  // the first makes the gradients
      allocator.ResetPeak();
      const Tensor y = stack(Input(1));
      peaks.forward = allocator.stats().peak_bytes - before;
      allocator.ResetPeak();
      Backward(y, Input(2), {.evaluation = true});
      peaks.backward = allocator.stats().peak_bytes - before;
    }
    const NoGrad no_grad;
    allocator.ResetPeak();
    stack(Input(1));
    peaks.evaluation = allocator.stats().peak_bytes - before;
    return peaks;
  };
  const Peaks plain = train(false), offloaded = train(true);
  int64_t block = 0;  // of the weights, each aligned to 256 bytes
  int64_t weights = 0;
  for (const auto& p : TransformerBlock(Options()).Parameters()) {
    weights += 4 * p->logical_shape().numel();
    block += (4 * p->logical_shape().numel() + 255) / 256 * 256;
  }
  EXPECT_EQ(plain.idle, kLayers * weights);
  EXPECT_EQ(offloaded.idle, 0);
  const int64_t saved = kLayers * weights - 2 * block;
  EXPECT_GT(saved, 3 * weights);
  EXPECT_EQ(plain.evaluation - offloaded.evaluation, saved);
  // Where the most activations are there, at the end of the forward, only the last block is.
  EXPECT_EQ(plain.forward - offloaded.forward, saved + block);
  EXPECT_EQ(plain.backward - offloaded.backward, saved);
}

// Also that of the host, where an event that is kept takes some hundred bytes on simulated GPUs: a
// step has some forty.
TEST_F(OffloadedWeights, KeepMemoryFlat) {
  Stack stack(3, {});
  stack.Materialize(kGpu, 5);
  const auto step = [&] {
    Backward(stack(Input(1)), Input(2), {.evaluation = true});
    stack.ZeroGrad();
    const NoGrad no_grad;
    stack(Input(1));
    Synchronize(CurrentStream(kGpu));
  };
  const int steps = test::kSanitized ? 10 : 400;
  for (int i = 0; i < steps / 4; ++i) step();
  const AllocatorStats before = GetAllocator(kGpu).stats();
  const int64_t on_host = test::ResidentBytes();
  for (int i = 0; i < steps; ++i) step();
  const AllocatorStats after = GetAllocator(kGpu).stats();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes);
  if (test::kSanitized) return;  // the allocator has no cache there
  EXPECT_LE(test::ResidentBytes(), on_host + (2 << 20));
  EXPECT_EQ(after.system_allocations, before.system_allocations);
}

// Two graphs at once, whose backwards come in any order, and one that has none.
TEST_F(OffloadedWeights, ServeSeveralGraphs) {
  const auto train = [](bool offload) {
    Stack stack(3, {.offload = offload});
    stack.Materialize(kGpu, 5);
    const Tensor a = stack(Input(1)), b = stack(Input(2));
    stack(Input(3));
    Backward(a, Input(4), {.evaluation = true});
    Backward(b, Input(5), {.evaluation = true});
    Values all;
    for (const auto& p : stack.Parameters()) all.push_back(ToValues(p->grad()));
    return all;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST_F(OffloadedWeights, ThatAreOverwrittenBeforeBackwardAreAnError) {
  Stack stack(3, {});
  stack.Materialize(kGpu, 5);
  const Tensor y = stack(Input(1));
  for (const auto& p : stack.Parameters()) p->value().Detach().Fill(1);
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y, Input(2), {.evaluation = true}); }),
              HasSubstr("has been overwritten"));
}

// A block that throws leaves weights on the device, which the next forward does not mistake for its
// own.
TEST_F(OffloadedWeights, SurviveAForwardThatThrows) {
  Stack stack(3, {}), plain(3, {.offload = false});
  for (Stack* s : {&stack, &plain}) s->Materialize(kGpu, 5);
  EXPECT_THROW(stack(RandomTensor({2, 16, kWidth + 1}, 1).To(DType::kF32).To(kGpu)), ArgumentError);
  for (Stack* s : {&stack, &plain}) {
    for (const auto& p : s->Parameters())
      p->part().Detach().CopyFrom(RandomTensor(p->part().shape(), 2));
  }
  EXPECT_EQ(Train(stack, DType::kF32), Train(plain, DType::kF32));
}

TEST_F(OffloadedWeights, AreTensorsOfTheHostBetweenForwards) {
  Stack stack(2, {}), other(2, {.offload = false});
  stack.Materialize(kGpu, 5);
  other.Materialize(kGpu, 6);
  for (const auto& p : stack.Parameters()) {
    EXPECT_TRUE(p->on_host());
    EXPECT_EQ(p->value().device(), kCpu);
    EXPECT_EQ(p->device(), kGpu);
  }
  stack(Input(1));
  const std::string file = testing::TempDir() + "/stack.safetensors";
  SaveModule(stack, file);
  LoadModule(other, file);
  for (size_t i = 0; i < stack.Parameters().size(); ++i) {
    EXPECT_EQ(ToValues(other.Parameters()[i]->value()), ToValues(stack.Parameters()[i]->value()));
  }
  Stack third(2, {});
  third.Materialize(kGpu, 7);
  LoadModule(third, file);
  EXPECT_EQ(ToValues(third(Input(1))), ToValues(other(Input(1))));
}

TEST(OffloadWeightsTest, DoesNothingOnTheCpu) {
  Stack stack(2, {});
  stack.Materialize(kCpu, 5);
  for (const auto& p : stack.Parameters()) {
    EXPECT_FALSE(p->on_host());
    EXPECT_EQ(p->device(), kCpu);
  }
  const Tensor x = RandomTensor({1, 4, kWidth}, 1, DType::kF32);
  Backward(stack(x), x, {.evaluation = true});
  EXPECT_TRUE(stack.Parameters()[0]->grad().defined());
}

TEST(OffloadWeightsTest, SaysWhatIsWrong) {
  const auto linear = std::make_shared<Linear>(3, 3);
  EXPECT_THAT(MessageOf([&] {
                OffloadWeights(std::vector{linear, linear});
              }),
              HasSubstr("is in the blocks 0 and 1: give it one module that contains both"));
  EXPECT_THAT(MessageOf([&] {
                OffloadWeights(std::vector{linear, std::shared_ptr<Linear>()});
              }),
              HasSubstr("block 1 is null"));
}

}  // namespace
}  // namespace lockstep::nn
