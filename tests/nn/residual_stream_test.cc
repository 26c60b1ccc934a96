// Last steps that are left to the norm: what a chain of blocks computes is what the blocks compute
// one by one.
#include "nn/stream/residual_stream.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "kernels/binary/binary.h"
#include "kernels/residual/residual.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/transformer_block.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::Difference;
using test::Matrix;
using test::MessageOf;
using test::RandomTensor;
using test::ToMatrix;

constexpr int64_t kWidth = 24;

// ---- Single layers. ----

TEST(BranchTest, ALinearLayerLeavesItsBias) {
  Linear linear(5, 3);
  BranchLinear open(5, 3);
  for (Module* m : std::initializer_list<Module*>{&linear, &open}) {
    m->Materialize(kCpu, 1, DType::kF64);
  }
  const Tensor x = RandomTensor({4, 5}, 2);
  const ops::Branch branch = open(x);
  EXPECT_EQ(branch.bias.ToVector<double>(), linear.bias()->value().ToVector<double>());
  EXPECT_EQ(branch.dropout, 0);
  EXPECT_GT(Difference(ToMatrix(branch.value), ToMatrix(linear(x))), 1e-3);
  EXPECT_LT(Difference(ToMatrix(ops::Complete(branch)), ToMatrix(linear(x))), 1e-14);
}

// What leaves the module is a copy; its gradient is not rounded to the dtype of the parameter.
TEST(BranchTest, TheBiasIsLeftAsACopyWhoseGradientIsNotRounded) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    BranchLinear linear(5, 3);
    linear.Materialize(kCpu, 1, dtype);
    const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
    linear.bias()->leaf().SetDType(wide);
    const ops::Branch branch = linear(RandomTensor({4, 5}, 2, dtype));
    EXPECT_EQ(branch.bias.dtype(), wide);
    EXPECT_NE(branch.bias.raw_data(), linear.bias()->value().raw_data());
    const Tensor grad = RandomTensor({3}, 3, wide);
    Backward(branch.bias, grad);
    Backward(linear(RandomTensor({4, 5}, 2, dtype)).bias, grad);
    EXPECT_EQ(ToMatrix(linear.bias()->grad()).data, ToMatrix(ops::Add(grad, grad)).data) << dtype;
  }
}

TEST(BranchTest, WhatIsNotLinearCompletesItsInput) {
  BranchLinear first(5, 5), second(5, 3);
  first.Materialize(kCpu, 1, DType::kF64);
  second.Materialize(kCpu, 2, DType::kF64);
  const ops::Branch branch = first(RandomTensor({4, 5}, 2));
  EXPECT_EQ(second(branch).value.ToVector<double>(),
            second(ops::Complete(branch)).value.ToVector<double>());
  EXPECT_THAT(MessageOf([] { BranchLinear(5, 3, {.activation = Activation::kGelu}); }),
              testing::HasSubstr("cannot have an activation: use Linear"));
}

TEST(BranchTest, OneDropoutIsLeftInTraining) {
  BranchDropout first(0.25), second(0.5);
  Dropout whole_first(0.25), whole_second(0.5);
  for (Module* m : std::initializer_list<Module*>{&first, &whole_first}) m->AssignNames("first");
  for (Module* m : std::initializer_list<Module*>{&second, &whole_second}) m->AssignNames("second");
  const Tensor x = RandomTensor({4, 50}, 2);
  EXPECT_EQ(first(x).dropout, 0) << "outside of training";
  StepState state(kCpu, 1);
  const TrainingScope training(state);
  const ops::Branch one = first(x), two = second(one);
  EXPECT_EQ(one.value.raw_data(), x.raw_data());
  EXPECT_EQ(one.dropout, 0.25);
  EXPECT_EQ(two.dropout, 0.5);
  state.SetFirstSample(0);  // the same micro-batch again
  EXPECT_EQ(ops::Complete(one).ToVector<double>(), whole_first(x).ToVector<double>());
  state.SetFirstSample(0);
  EXPECT_EQ(ops::Complete(two).ToVector<double>(), whole_second(whole_first(x)).ToVector<double>());
}

// ---- Blocks. ----

// As models::Gpt holds its blocks.
struct Chain : Module {
  explicit Chain(const TransformerOptions& options)
      : norm(this, "norm",
             std::make_shared<ResidualNorm>(
                 kWidth, NormOptions{.kind = options.norm, .bias = options.bias})) {
    for (int i = 0; i < 3; ++i) blocks.Add(std::make_shared<TransformerBlock>(options));
  }

  Tensor InOnePass(Tensor x) {
    ResidualStream stream = x;
    for (int64_t i = 0; i < 3; ++i) stream = blocks[i](std::move(stream));
    return norm(stream).second;
  }
  Tensor OneByOne(Tensor x) {
    for (int64_t i = 0; i < 3; ++i) x = Complete(blocks[i](x));
    return norm(ResidualStream(x)).second;
  }

  ChildList<Block> blocks{this, "h"};
  Child<ResidualNormLayer> norm;
};

TransformerOptions Gpt2() { return {.n_embd = kWidth, .n_head = 4, .dropout = 0.3}; }
TransformerOptions Llama() {
  return {.n_embd = kWidth,
          .n_head = 4,
          .bias = false,
          .n_kv_head = 2,
          .norm = NormKind::kRmsNorm,
          .activation = MlpActivation::kSwiGlu,
          .rotary = std::make_shared<Rotary>(kWidth / 4, RotaryOptions{})};
}

class BlockChain : public testing::TestWithParam<TransformerOptions> {
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
    Backward(test::Project(y), {}, {.evaluation = true});
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
    explicit Twice(std::shared_ptr<Module> base) : base_(this, "base", std::move(base)) {}
    Tensor Forward(const Tensor& x) override {
      return ops::Residual(ops::Complete(base_(x)), ops::Complete(base_(x)));
    }
    Child<BranchLayer> base_;
  };
  for (const std::string path : {"h.1.attn.c_proj", "h.2.mlp.c_proj", "h.0.mlp"}) {
    for (auto& [name, module] : chain_.NamedModules()) {
      if (name != path) continue;
      // A layer of the same shape, with parameters of its own.
      std::shared_ptr<Module> base;
      if (path == "h.0.mlp") {
        base = std::make_shared<Mlp>(TransformerOptions{.n_embd = kWidth, .n_inner = 10});
      } else {
        const auto& linear = dynamic_cast<BranchLinear&>(*module);
        base = std::make_shared<BranchLinear>(linear.in_features(), linear.out_features());
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
    if (!path.starts_with("h.1") || dynamic_cast<BranchDropout*>(module) != nullptr) continue;
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
