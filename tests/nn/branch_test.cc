// Last steps that are left to the norm: what a chain of blocks computes is what the blocks compute
// one by one.
#include "nn/branch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "kernels/residual/residual.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/transformer_block.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::Difference;
using test::Matrix;
using test::RandomTensor;
using test::ToMatrix;

constexpr int64_t kWidth = 24;

// ---- Single layers. ----

TEST(BranchTest, ALinearLayerLeavesItsBias) {
  Linear linear(5, 3);
  linear.Materialize(kCpu, 1, DType::kF64);
  const Tensor x = RandomTensor({4, 5}, 2);
  const ops::Branch branch = linear.AsBranch(x);
  EXPECT_EQ(branch.bias.raw_data(), linear.bias()->value().raw_data());
  EXPECT_EQ(branch.dropout, 0);
  EXPECT_GT(Difference(ToMatrix(branch.value), ToMatrix(linear(x))), 1e-3);
  EXPECT_LT(Difference(ToMatrix(ops::Complete(branch)), ToMatrix(linear(x))), 1e-14);
}

TEST(BranchTest, WhatMustComeAfterTheBiasIsNotLeft) {
  Linear activated(5, 3, {.activation = Activation::kGelu});
  activated.Materialize(kCpu, 1, DType::kF64);
  const Tensor x = RandomTensor({4, 5}, 2);
  const ops::Branch branch = activated.AsBranch(x);
  EXPECT_FALSE(branch.bias.defined());
  EXPECT_EQ(branch.value.ToVector<double>(), activated(x).ToVector<double>());

  Linear first(5, 5), second(5, 3);
  first.Materialize(kCpu, 1, DType::kF64);
  second.Materialize(kCpu, 2, DType::kF64);
  EXPECT_LT(Difference(ToMatrix(ops::Complete(second.AsBranch(first.AsBranch(x)))),
                       ToMatrix(second(first(x)))),
            1e-14);
}

TEST(BranchTest, OneDropoutIsLeftInTraining) {
  Dropout first(0.25), second(0.5);
  first.AssignNames("first");
  second.AssignNames("second");
  const Tensor x = RandomTensor({4, 50}, 2);
  EXPECT_EQ(first.AsBranch(x).dropout, 0) << "outside of training";
  StepState state(kCpu, 1);
  const TrainingScope training(state);
  const ops::Branch one = first.AsBranch(x), two = second.AsBranch(one);
  EXPECT_EQ(one.value.raw_data(), x.raw_data());
  EXPECT_EQ(one.dropout, 0.25);
  EXPECT_EQ(two.dropout, 0.5);
  state.SetFirstSample(0);  // the same micro-batch again
  EXPECT_EQ(ops::Complete(one).ToVector<double>(), first(x).ToVector<double>());
  state.SetFirstSample(0);
  EXPECT_EQ(ops::Complete(two).ToVector<double>(), second(first(x)).ToVector<double>());
}

// ---- Blocks. ----

// As models::Gpt holds its blocks.
struct Chain : Module {
  explicit Chain(const TransformerBlockOptions& options)
      : norm(this, "norm",
             std::make_shared<ResidualNorm>(
                 kWidth, NormOptions{.kind = options.norm, .bias = options.bias})) {
    for (int i = 0; i < 3; ++i) blocks.Add(std::make_shared<TransformerBlock>(options));
  }

  Tensor InOnePass(Tensor x) {
    ops::Branch branch;
    for (int64_t i = 0; i < 3; ++i) std::tie(x, branch) = blocks[i]->Continue(x, branch);
    return norm(x, branch).second;
  }
  Tensor OneByOne(Tensor x) {
    for (int64_t i = 0; i < 3; ++i) x = blocks[i](x);
    return norm(x, ops::Branch()).second;
  }

  ChildList<TransformerBlock> blocks{this, "h"};
  Child<ResidualNormLayer> norm;
};

TransformerBlockOptions Gpt2() { return {.n_embd = kWidth, .n_head = 4, .dropout = 0.3}; }
TransformerBlockOptions Llama() {
  return {.n_embd = kWidth,
          .n_head = 4,
          .bias = false,
          .n_kv_head = 2,
          .norm = NormKind::kRmsNorm,
          .activation = MlpActivation::kSwiGlu,
          .rotary = std::make_shared<Rotary>(kWidth / 4, RotaryOptions{})};
}

class BlockChain : public testing::TestWithParam<TransformerBlockOptions> {
 protected:
  BlockChain() : chain_(GetParam()) {
    chain_.Materialize(kCpu, 1, DType::kF64);
    test::Randomize(chain_, 3, -0.5, 0.5);
    x_ = RandomTensor({2, 7, kWidth}, 4);
    x_.SetRequiresGrad();
  }

  // The result, then the gradients of x and of all parameters.
  std::vector<Matrix> Run(Tensor (Chain::*forward)(Tensor)) {
    state_.SetFirstSample(6);
    const Tensor y = (chain_.*forward)(x_);
    Backward(test::Project(y));
    std::vector<Matrix> out{ToMatrix(y), ToMatrix(x_.grad())};
    for (const auto& p : chain_.Parameters()) out.push_back(ToMatrix(p->grad()));
    chain_.ZeroGrad();
    x_.ZeroGrad();
    return out;
  }
  void ExpectEqualRuns() {
    const std::vector<Matrix> fused = Run(&Chain::InOnePass), plain = Run(&Chain::OneByOne);
    ASSERT_EQ(fused.size(), plain.size());
    for (size_t i = 0; i < fused.size(); ++i) {
      EXPECT_LT(Difference(fused[i], plain[i]), 1e-12) << "number " << i;
    }
  }

  StepState state_{kCpu, 5};
  Chain chain_;
  Tensor x_;
};

TEST_P(BlockChain, ComputesWhatBlocksDoOneByOne) { ExpectEqualRuns(); }

TEST_P(BlockChain, AlsoInTrainingWithTheSameMasks) {
  state_.Begin(3, 0);
  const TrainingScope training(state_);
  ExpectEqualRuns();
}

TEST_P(BlockChain, TakesWhateverIsPutIntoItsSlots) {
  // A layer that completes its result itself.
  struct Twice : Layer {
    explicit Twice(std::shared_ptr<Module> base)
        : base_(this, "base", std::dynamic_pointer_cast<Layer>(base)) {}
    Tensor Forward(const Tensor& x) override { return ops::Residual(base_(x), base_(x)); }
    Child<Layer> base_;
  };
  for (const std::string path : {"h.1.attn.c_proj", "h.2.mlp.c_proj", "h.0.mlp"}) {
    for (auto& [name, module] : chain_.NamedModules()) {
      if (name != path) continue;
      // A layer of the same shape, with parameters of its own.
      std::shared_ptr<Module> base;
      if (path == "h.0.mlp") {
        base = std::make_shared<Mlp>(kWidth, 10);
      } else {
        const auto& linear = dynamic_cast<Linear&>(*module);
        base = std::make_shared<Linear>(linear.in_features(), linear.out_features());
      }
      base->Materialize(kCpu, 9, DType::kF64);
      test::Randomize(*base, 10, -0.5, 0.5);
      chain_.ReplaceChild(path, std::make_shared<Twice>(base));
      break;
    }
  }
  const TrainingScope training(state_);
  ExpectEqualRuns();
}

TEST_P(BlockChain, RunsTheHooksOfItsModules) {
  std::vector<std::string> events;
  for (auto& [path, module] : chain_.NamedModules()) {
    if (!path.starts_with("h.1") || dynamic_cast<Dropout*>(module) != nullptr) continue;
    module->AddPreForwardHook([&, path = path](Module&) { events.push_back("> " + path); });
    module->AddPostForwardHook([&, path = path](Module&) { events.push_back("< " + path); });
    module->AddPreBackwardHook([&, path = path](Module&) { events.push_back("B> " + path); });
    module->AddPostBackwardHook([&, path = path](Module&) { events.push_back("B< " + path); });
  }
  Run(&Chain::InOnePass);
  std::vector<std::string> in_one_pass;
  std::swap(in_one_pass, events);
  Run(&Chain::OneByOne);
  EXPECT_EQ(in_one_pass, events);
  EXPECT_EQ(events.front(), "> h.1");
  EXPECT_EQ(events.back(), "B< h.1");
}

INSTANTIATE_TEST_SUITE_P(Models, BlockChain, testing::Values(Gpt2(), Llama()),
                         [](const auto& instance) {
                           return instance.index == 0 ? "Gpt2" : "Llama";
                         });

}  // namespace
}  // namespace lockstep::nn
