// Copies between host and GPU run while the GPU computes. CUDASIM_DELAY makes the simulated GPU do
// nothing that nobody waits for: so where a copy is awaited, what it depends on is done, and
// nothing else.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/offload/host_copies.h"
#include "models/gpt/gpt.h"
#include "nn/offload.h"
#include "nn/offload_weights.h"
#include "nn/transformer_block.h"
#include "optim/adamw.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

using test::kGpu;
using Track = CopyListener::Track;

class Recorder : public CopyListener {
 public:
  void OnSpan(Span span) override { spans_.push_back(std::move(span)); }

  // Those of a track, in the order of submission, whose names end with `suffix`.
  std::vector<Span> Of(Track track, const std::string& suffix = "") const {
    std::vector<Span> found;
    for (const Span& span : spans_) {
      if (span.track == track && span.name.ends_with(suffix)) found.push_back(span);
    }
    return found;
  }

 private:
  std::vector<Span> spans_;
};

class OffloadOverlap : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !cuda::Simulated()) GTEST_SKIP() << "a GPU does not wait to be asked";
  }
};

// The copy ends although the computation has not even begun.
void ExpectAhead(const CopyListener::Span& copy, const CopyListener::Span& compute) {
  copy.end->Synchronize();
  EXPECT_FALSE(compute.end->Query()) << copy.name << " waits for " << compute.name;
}

TEST_F(OffloadOverlap, WeightsArriveABlockAhead) {
  constexpr int kLayers = 4;
  std::vector<std::shared_ptr<nn::Block>> blocks;
  for (int i = 0; i < kLayers; ++i) {
    blocks.push_back(
        std::make_shared<nn::TransformerBlock>(nn::TransformerOptions{.n_embd = 8, .n_head = 2}));
    blocks.back()->AssignNames("h." + std::to_string(i));
  }
  nn::OffloadWeights(blocks);
  for (const auto& block : blocks) block->Materialize(kGpu, 1);
  Tensor x = Tensor::Full({1, 4, 8}, 0.5, DType::kF32, kGpu);
  const Recorder recorder;
  nn::ResidualStream stream = x.SetRequiresGrad();
  for (const auto& block : blocks) stream = (*block)(std::move(stream));
  const auto to_device = recorder.Of(Track::kToDevice);
  const auto forward = recorder.Of(Track::kCompute, " forward");
  ASSERT_EQ(to_device.size(), kLayers);
  ASSERT_EQ(forward.size(), kLayers);
  for (int i = 0; i + 1 < kLayers; ++i) {
    EXPECT_EQ(forward[i].name, "h." + std::to_string(i) + " forward");
    ExpectAhead(to_device[i + 1], forward[i]);
    // Awaiting a block's end asks for the blocks before it.
    forward[i].end->Synchronize();
  }
  const Tensor y = nn::Complete(stream);
  Backward(y, Tensor::Full(y.shape(), 1, DType::kF32, kGpu));
  const auto back = recorder.Of(Track::kToDevice);
  const auto backward = recorder.Of(Track::kCompute, " backward");
  // The last block's weights stayed.
  ASSERT_EQ(back.size(), 2 * kLayers - 1);
  ASSERT_EQ(backward.size(), kLayers);
  for (int i = 0; i + 1 < kLayers; ++i) {
    ExpectAhead(back[kLayers + i], backward[i]);
    backward[i].end->Synchronize();
  }
  Synchronize(CurrentStream(kGpu));
}

// What a block saved leaves while the next one computes, and comes back a block ahead: each way on
// a stream of its own, which that computation does not wait for.
TEST_F(OffloadOverlap, ActivationsTravelWhileAnotherBlockComputes) {
  constexpr size_t kLayers = 4;
  const auto offloader = std::make_shared<Offloader>();
  std::vector<std::shared_ptr<nn::Block>> blocks, wrapped;
  std::vector<std::unique_ptr<Event>> forward, backward;  // the ends of what a block computes
  const auto notes = [](std::vector<std::unique_ptr<Event>>& ends) {
    return [&ends](Module&) {
      ends.push_back(std::make_unique<Event>(kGpu));
      ends.back()->Record(CurrentStream(kGpu));
    };
  };
  for (size_t i = 0; i < kLayers; ++i) {
    blocks.push_back(
        std::make_shared<nn::TransformerBlock>(nn::TransformerOptions{.n_embd = 16, .n_head = 2}));
    blocks.back()->AssignNames("h." + std::to_string(i));
    blocks.back()->Materialize(kGpu, 1);
    blocks.back()->AddPostForwardHook(notes(forward));
    blocks.back()->AddPostBackwardHook(notes(backward));
    wrapped.push_back(nn::Offload(blocks.back(), offloader));
  }
  Tensor x = Tensor::Full({2, 16, 16}, 0.5, DType::kF32, kGpu);
  const Recorder recorder;
  nn::ResidualStream stream = x.SetRequiresGrad();
  for (const auto& block : wrapped) stream = (*block)(std::move(stream));
  // The last block's stay.
  const auto to_host = recorder.Of(Track::kToHost);
  ASSERT_EQ(to_host.size(), kLayers - 1);
  ASSERT_EQ(forward.size(), kLayers);
  for (size_t i = 0; i + 1 < kLayers; ++i) {
    forward[i + 1]->Synchronize();
    EXPECT_FALSE(to_host[i].end->Query()) << "block " << i + 1 << " waits for block " << i << "'s";
  }
  const Tensor y = nn::Complete(stream);
  Backward(y, Tensor::Full(y.shape(), 1, DType::kF32, kGpu));
  const auto to_device = recorder.Of(Track::kToDevice);
  ASSERT_EQ(to_device.size(), kLayers - 1);
  ASSERT_EQ(backward.size(), kLayers);  // from the last block to the first
  for (size_t i = 0; i + 1 < kLayers; ++i) {
    backward[i]->Synchronize();
    EXPECT_FALSE(to_device[i].end->Query()) << "backward " << i << " waits for what follows it";
  }
}

TEST_F(OffloadOverlap, StateArrivesAPieceAhead) {
  std::vector<std::shared_ptr<Parameter>> parameters;
  for (int i = 0; i < 5; ++i) {
    parameters.push_back(std::make_shared<Parameter>(Shape{1024}, nullptr, true));
    parameters.back()->set_name("p" + std::to_string(i));
    parameters.back()->Materialize(kGpu, DType::kF32, 1);
  }
  // A piece for each parameter.
  optim::AdamW adamw(parameters, {.offload = {.to_host = true, .buffer_bytes = 8 * 1024}});
  StepState state(kGpu, 1);
  const auto training = adamw.BeginStep(state, 0, 1e-2);
  for (const auto& p : parameters) {
    p->leaf().SetGrad(Tensor::Full({1024}, 1, DType::kF32, kGpu));
  }
  const Recorder recorder;
  adamw.Step(state);
  const auto to_device = recorder.Of(Track::kToDevice), to_host = recorder.Of(Track::kToHost),
             updates = recorder.Of(Track::kCompute);
  ASSERT_EQ(to_device.size(), 5);
  ASSERT_EQ(to_host.size(), 5);
  ASSERT_EQ(updates.size(), 5);
  for (int i = 0; i + 1 < 5; ++i) {
    ExpectAhead(to_device[i + 1], updates[i]);
    updates[i].end->Synchronize();
    // And the next update does not wait for the way back.
    EXPECT_FALSE(to_host[i].end->Query());
  }
  Synchronize(CurrentStream(kGpu));
  for (const auto& span : to_host) EXPECT_TRUE(span.end->Query());
}

}  // namespace
}  // namespace lockstep
