// Attention, MLP and the block of GPT-2.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "kernels/linear/linear.h"
#include "kernels/residual/residual.h"
#include "nn/attention/causal_self_attention.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/transformer_block.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::Describe;
using test::Difference;
using test::Matrix;
using test::MessageOf;
using test::ParameterOf;
using test::RandomTensor;
using test::ToMatrix;
using testing::ElementsAre;
using testing::HasSubstr;

// As models::Gpt holds its blocks.
class Stack : public Layer {
 public:
  Stack(int64_t layers, const TransformerOptions& options) {
    for (int64_t i = 0; i < layers; ++i) blocks_.Add(std::make_shared<TransformerBlock>(options));
  }

 protected:
  Tensor Forward(const Tensor& x) override {
    ResidualStream stream = x;
    for (int64_t i = 0; i < blocks_.size(); ++i) stream = blocks_[i](std::move(stream));
    return Complete(stream);
  }

 private:
  ChildList<Block> blocks_{this, "h"};
};

Matrix OptionalParameter(const Module& module, const std::string& path, bool there) {
  return there ? ParameterOf(module, path) : Matrix();
}

Matrix AttentionReference(const Module& m, const std::string& at, const Matrix& x, int64_t batches,
                          int64_t heads, bool bias) {
  const auto linear = [&](const std::string& name, const Matrix& in) {
    return test::LinearReference(in, ParameterOf(m, at + name + ".weight"),
                                 OptionalParameter(m, at + name + ".bias", bias));
  };
  return linear("c_proj", test::CausalAttentionReference(linear("c_attn", x), batches, heads));
}

Matrix BlockReference(const Module& m, const std::string& at, const Matrix& x, int64_t batches,
                      int64_t heads, bool bias) {
  const auto norm = [&](const std::string& name, const Matrix& in) {
    return test::LayerNormReference(in, ParameterOf(m, at + name + ".weight"),
                                    OptionalParameter(m, at + name + ".bias", bias), 1e-5);
  };
  const Matrix middle = test::AddReference(
      x, AttentionReference(m, at + "attn.", norm("ln_1", x), batches, heads, bias));
  const Matrix hidden = test::GeluReference(
      test::LinearReference(norm("ln_2", middle), ParameterOf(m, at + "mlp.c_fc.weight"),
                            OptionalParameter(m, at + "mlp.c_fc.bias", bias)));
  return test::AddReference(
      middle, test::LinearReference(hidden, ParameterOf(m, at + "mlp.c_proj.weight"),
                                    OptionalParameter(m, at + "mlp.c_proj.bias", bias)));
}

// ---- Names, shapes and initialisation ----

TEST(TransformerBlockTest, HasTheNamesOfHuggingFacesGpt2) {
  const Stack stack(2, {.n_embd = 8, .n_head = 2});
  std::vector<std::string> want;
  for (const std::string h : {"h.0.", "h.1."}) {
    for (const std::string rest :
         {"ln_1.weight [8]", "ln_1.bias [8]", "attn.c_attn.weight [24, 8] decays",
          "attn.c_attn.bias [24]", "attn.c_proj.weight [8, 8] decays", "attn.c_proj.bias [8]",
          "ln_2.weight [8]", "ln_2.bias [8]", "mlp.c_fc.weight [32, 8] decays",
          "mlp.c_fc.bias [32]", "mlp.c_proj.weight [8, 32] decays", "mlp.c_proj.bias [8]"}) {
      want.push_back(h + rest);
    }
  }
  EXPECT_EQ(Describe(stack), want);
}

TEST(TransformerBlockTest, WithoutBiasesThereAreNone) {
  EXPECT_THAT(Describe(TransformerBlock({.n_embd = 4, .n_head = 1, .bias = false})),
              ElementsAre("ln_1.weight [4]", "attn.c_attn.weight [12, 4] decays",
                          "attn.c_proj.weight [4, 4] decays", "ln_2.weight [4]",
                          "mlp.c_fc.weight [16, 4] decays", "mlp.c_proj.weight [4, 16] decays"));
}

TEST(TransformerBlockTest, IsInitialisedAsGpt2) {
  TransformerBlock block({.n_embd = 128, .n_head = 4, .residual_std = 0.02 / std::sqrt(2.0 * 12)});
  block.Materialize(kCpu, 1337);
  for (const auto& [name, p] : block.NamedParameters()) {
    const std::vector<float> values = p->value().ToVector<float>();
    double sum = 0, squares = 0;
    for (const double v : values) {
      sum += v;
      squares += v * v;
    }
    const auto n = static_cast<double>(values.size());
    if (name.ends_with("bias")) {
      EXPECT_EQ(squares, 0) << name;
    } else if (name.starts_with("ln_")) {
      EXPECT_THAT(values, testing::Each(1)) << name;
    } else {
      const double want = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(24) : 0.02;
      EXPECT_NEAR(sum / n, 0, 5 * want / std::sqrt(n)) << name;
      EXPECT_NEAR(std::sqrt(squares / n), want, 5 * want / std::sqrt(2 * n)) << name;
    }
  }
}

TEST(TransformerBlockTest, AParameterHasTheSameBitsInAnyModel) {
  Stack small(1, {.n_embd = 16, .n_head = 2}), large(3, {.n_embd = 16, .n_head = 2});
  Stack bare(1, {.n_embd = 16, .n_head = 4, .bias = false});
  for (Stack* s : {&small, &large, &bare}) s->Materialize(kCpu, 5);
  for (const std::string name : {"h.0.attn.c_attn.weight", "h.0.mlp.c_proj.weight"}) {
    EXPECT_EQ(ParameterOf(small, name).data, ParameterOf(large, name).data);
    EXPECT_EQ(ParameterOf(small, name).data, ParameterOf(bare, name).data);
  }
  EXPECT_NE(ParameterOf(large, "h.0.attn.c_attn.weight").data,
            ParameterOf(large, "h.1.attn.c_attn.weight").data);
  EXPECT_NE(ParameterOf(large, "h.0.attn.c_proj.weight").data[0],
            ParameterOf(large, "h.0.mlp.c_proj.weight").data[0]);
  Stack other(1, {.n_embd = 16, .n_head = 2});
  other.Materialize(kCpu, 6);
  EXPECT_NE(ParameterOf(small, "h.0.attn.c_attn.weight").data,
            ParameterOf(other, "h.0.attn.c_attn.weight").data);
}

// ---- Forward ----

TEST(TransformerBlockTest, ForwardIsTheFormula) {
  for (const bool bias : {true, false}) {
    for (const int64_t heads : {1, 3}) {
      Stack stack(2, {.n_embd = 12, .n_head = heads, .bias = bias});
      stack.Materialize(kCpu, 1, DType::kF64);
      test::Randomize(stack, 3, -0.5, 0.5);
      const Tensor x = RandomTensor({2, 7, 12}, 8);
      const Tensor y = stack(x);
      EXPECT_EQ(y.shape(), x.shape());
      Matrix want = BlockReference(stack, "h.0.", ToMatrix(x), 2, heads, bias);
      want = BlockReference(stack, "h.1.", want, 2, heads, bias);
      EXPECT_LT(Difference(ToMatrix(y), want), 1e-12) << "bias " << bias << ", heads " << heads;
    }
  }
}

TEST(TransformerBlockTest, ForwardInF32IsNearTheFormula) {
  TransformerBlock block({.n_embd = 48, .n_head = 4});
  block.Materialize(kCpu, 1);
  const Tensor x = RandomTensor({2, 33, 48}, 8, DType::kF32);
  EXPECT_LT(
      Difference(ToMatrix(Complete(block(x))), BlockReference(block, "", ToMatrix(x), 2, 4, true)),
      2e-6);
}

TEST(TransformerBlockTest, PositionsSeeOnlyThePast) {
  TransformerBlock block({.n_embd = 8, .n_head = 2});
  block.Materialize(kCpu, 1, DType::kF64);
  const Tensor x = RandomTensor({1, 6, 8}, 8);
  const std::vector<double> before = Complete(block(x)).ToVector<double>();
  x.Slice(1, 4, 5).Fill(3);
  const std::vector<double> after = Complete(block(x)).ToVector<double>();
  for (size_t i = 0; i < 4 * 8; ++i) EXPECT_EQ(before[i], after[i]);
  for (size_t t = 4; t < 6; ++t) EXPECT_NE(before[t * 8], after[t * 8]);
}

TEST(TransformerBlockTest, SizesAreChecked) {
  EXPECT_THAT(MessageOf([] { TransformerBlock({.n_embd = 10, .n_head = 3}); }),
              HasSubstr("(n_embd = 10) must be a positive multiple of the number of heads "
                        "(n_head = 3)"));
  EXPECT_THROW(TransformerBlock({.n_embd = 0, .n_head = 1}), ArgumentError);
  EXPECT_THROW(TransformerBlock({.n_embd = 4, .n_head = 0}), ArgumentError);
  EXPECT_THROW(TransformerBlock({.n_embd = 4, .n_head = 2, .dropout = 1}), ArgumentError);
}

// ---- Gradients ----

TEST(GradientTest, WholeBlockAgainstDifferences) {
  for (const bool bias : {true, false}) {
    TransformerBlock block({.n_embd = 6, .n_head = 2, .bias = bias});
    block.Materialize(kCpu, 1, DType::kF64);
    test::Randomize(block, 3, -0.7, 0.7);
    Tensor x = RandomTensor({2, 5, 6}, 8);
    x.SetRequiresGrad();
    auto tensors = test::ParametersToCheck(block);
    tensors.emplace_back("x", x);
    test::CheckGradients(tensors, [&] { return test::Project(Complete(block(x))); });
  }
}

TEST(GradientTest, WithDropout) {
  Stack stack(1, {.n_embd = 6, .n_head = 2, .dropout = 0.3});
  stack.Materialize(kCpu, 1, DType::kF64);
  test::Randomize(stack, 3, -0.7, 0.7);
  Tensor x = RandomTensor({2, 5, 6}, 8);
  x.SetRequiresGrad();
  StepState state(kCpu, 7);
  TrainingScope training(state);
  auto tensors = test::ParametersToCheck(stack);
  tensors.emplace_back("x", x);
  test::CheckGradients(tensors, [&] {
    state.SetFirstSample(0);  // the same masks each time
    return test::Project(stack(x));
  });
}

TEST(GradientTest, TwoRunsGiveTheSameBitsAndDeferralToo) {
  std::vector<std::vector<float>> first;
  for (const bool defer : {false, false, true}) {
    Stack stack(2, {.n_embd = 32, .n_head = 4, .dropout = 0.1});
    stack.Materialize(kCpu, 1);
    const StepState state(kCpu, 7);
    TrainingScope training(state);
    const Tensor x = RandomTensor({2, 20, 32}, 8, DType::kF32);
    const Tensor grad = RandomTensor({2, 20, 32}, 9, DType::kF32);
    DeferredGradients deferred;
    BackwardOptions options;
    if (defer) {
      options.defer = [](const Leaf& leaf) { return leaf.shape().ndim() == 2; };
      options.deferred = &deferred;
    }
    Backward(stack(x), grad, options);
    deferred.Run();
    std::vector<std::vector<float>> grads;
    for (const auto& p : stack.Parameters()) grads.push_back(p->grad().ToVector<float>());
    if (first.empty()) first = grads;
    EXPECT_EQ(grads, first) << "deferred: " << defer;
  }
}

// ---- Dropout ----

TEST(TransformerDropoutTest, EveryPlaceHasItsOwnMaskAndEvaluationHasNone) {
  Stack stack(2, {.n_embd = 16, .n_head = 2, .dropout = 0.5});
  Stack plain(2, {.n_embd = 16, .n_head = 2});
  stack.Materialize(kCpu, 1, DType::kF64);
  plain.Materialize(kCpu, 1, DType::kF64);
  const Tensor x = RandomTensor({2, 5, 16}, 8);
  const std::vector<double> evaluated = stack(x).ToVector<double>();
  EXPECT_EQ(evaluated, plain(x).ToVector<double>());
  StepState state(kCpu, 7);
  const StepState other(kCpu, 8);
  std::vector<double> trained;
  {
    TrainingScope training(state);
    trained = stack(x).ToVector<double>();
    EXPECT_NE(stack(x).ToVector<double>(), trained) << "a second forward of one micro-batch";
    state.SetFirstSample(0);
    EXPECT_EQ(stack(x).ToVector<double>(), trained);
  }
  EXPECT_NE(trained, evaluated);
  {
    TrainingScope training(other);
    EXPECT_NE(stack(x).ToVector<double>(), trained);
  }
  EXPECT_EQ(stack(x).ToVector<double>(), evaluated);
}

TEST(TransformerDropoutTest, MicroBatchesDropWhatTheWholeBatchDoes) {
  Stack stack(2, {.n_embd = 16, .n_head = 2, .dropout = 0.3});
  stack.Materialize(kCpu, 1, DType::kF64);
  const Tensor x = RandomTensor({4, 5, 16}, 8);
  StepState state(kCpu, 7);
  TrainingScope training(state);
  const std::vector<double> whole = stack(x).ToVector<double>();
  std::vector<double> parts;
  for (int64_t b = 0; b < 4; ++b) {
    state.SetFirstSample(b);
    const std::vector<double> part = stack(x.Slice(0, b, b + 1)).ToVector<double>();
    parts.insert(parts.end(), part.begin(), part.end());
  }
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-12);
}

// ---- Replacement: LoRA, Hu et al. (2021) ----

class Lora : public Layer {
 public:
  Lora(std::shared_ptr<Layer> base, int64_t in, int64_t out, int64_t rank)
      : base_(this, "base", std::move(base)) {
    a_ = AddParameter("lora_a", {rank, in}, Normal(0, 0.02), true);
    b_ = AddParameter("lora_b", {out, rank}, Constant(0), true);
    for (const auto& p : base_->Parameters()) p->SetTrainable(false);
  }
  const std::shared_ptr<Parameter>& b() const { return b_; }

 protected:
  Tensor Forward(const Tensor& x) override {
    return ops::Residual(base_(x), ops::Linear(ops::Linear(x, a_->value()), b_->value()));
  }

 private:
  Child<Layer> base_;
  std::shared_ptr<Parameter> a_, b_;
};

TEST(ReplacementTest, ALoraLayerInTheSlotOfCAttn) {
  Stack stack(2, {.n_embd = 8, .n_head = 2});
  stack.Materialize(kCpu, 1, DType::kF64);
  const Tensor x = RandomTensor({2, 5, 8}, 8);
  const std::vector<double> before = stack(x).ToVector<double>();
  std::shared_ptr<Layer> base;
  for (auto& [path, module] : stack.NamedModules()) {
    if (path == "h.1.attn.c_attn") {
      base = std::make_shared<Linear>(8, 24);
      for (size_t i = 0; i < 2; ++i) {
        base->Parameters()[i]->SetValue(module->Parameters()[i]->value());
      }
    }
  }
  const auto lora = std::make_shared<Lora>(base, 8, 24, 2);
  stack.ReplaceChild("h.1.attn.c_attn", lora);
  const auto names = Describe(stack);
  EXPECT_THAT(names, testing::Contains("h.1.attn.c_attn.lora_a [2, 8] decays"));
  EXPECT_THAT(names, testing::Contains("h.1.attn.c_attn.base.weight [24, 8] decays"));
  EXPECT_THAT(names, testing::Contains("h.0.attn.c_attn.weight [24, 8] decays"));
  for (const auto& p : lora->Parameters()) {
    if (p->value().device().is_meta()) p->Materialize(kCpu, DType::kF64, 1);
  }
  EXPECT_EQ(stack(x).ToVector<double>(), before) << "B = 0 changes nothing";
  lora->b()->value().Detach().Fill(0.1);
  EXPECT_NE(stack(x).ToVector<double>(), before);
  std::vector<std::pair<std::string, Tensor>> trainable;
  for (const auto& [name, p] : stack.NamedParameters()) {
    if (p->trainable()) trainable.emplace_back(name, p->value());
  }
  EXPECT_EQ(trainable.size(), 24u);  // 12 + 10 + 2
  test::CheckGradients(
      trainable, [&] { return test::Project(stack(x)); }, 1, 1);
  EXPECT_FALSE(base->Parameters()[0]->grad().defined());
}

// ---- Hooks ----

TEST(HookOrderTest, OfABlock) {
  Stack stack(1, {.n_embd = 4, .n_head = 1});
  stack.Materialize(kCpu, 1, DType::kF64);
  std::vector<std::string> events;
  for (auto& [path, module] : stack.NamedModules()) {
    if (dynamic_cast<BranchDropout*>(module) != nullptr) continue;  // returns its input here
    module->AddPreForwardHook([&, path = path](Module&) { events.push_back("> " + path); });
    module->AddPostForwardHook([&, path = path](Module&) { events.push_back("< " + path); });
    module->AddPreBackwardHook([&, path = path](Module&) { events.push_back("B> " + path); });
    module->AddPostBackwardHook([&, path = path](Module&) { events.push_back("B< " + path); });
  }
  const Tensor loss = test::Project(stack(RandomTensor({1, 2, 4}, 1)));
  EXPECT_THAT(
      events,
      ElementsAre("> ", "> h.0", "> h.0.ln_1", "< h.0.ln_1", "> h.0.attn", "> h.0.attn.c_attn",
                  "< h.0.attn.c_attn", "> h.0.attn.c_proj", "< h.0.attn.c_proj", "< h.0.attn",
                  "> h.0.ln_2", "< h.0.ln_2", "> h.0.mlp", "> h.0.mlp.c_fc", "< h.0.mlp.c_fc",
                  "> h.0.mlp.c_proj", "< h.0.mlp.c_proj", "< h.0.mlp", "< h.0", "< "));
  events.clear();
  Backward(loss);
  EXPECT_THAT(events,
              ElementsAre("B> ", "B> h.0", "B> h.0.mlp", "B> h.0.mlp.c_proj", "B< h.0.mlp.c_proj",
                          "B> h.0.mlp.c_fc", "B< h.0.mlp.c_fc", "B< h.0.mlp", "B> h.0.ln_2",
                          "B< h.0.ln_2", "B> h.0.attn", "B> h.0.attn.c_proj", "B< h.0.attn.c_proj",
                          "B> h.0.attn.c_attn", "B< h.0.attn.c_attn", "B< h.0.attn", "B> h.0.ln_1",
                          "B< h.0.ln_1", "B< h.0", "B< "));
}

// The order in which gradients become ready is what bucketing relies on.
TEST(HookOrderTest, LeavesAreReadyFromTheLastLayerToTheFirst) {
  struct Recorder : BackwardObserver {
    std::vector<std::string> planned, ready;
    void OnBegin(const BackwardPlan& plan) override {
      for (const auto& leaf : plan.leaves) planned.push_back(leaf->name());
    }
    void OnLeafReady(Leaf& leaf) override { ready.push_back(leaf.name()); }
  } recorder;
  Stack stack(3, {.n_embd = 4, .n_head = 1});
  stack.Materialize(kCpu, 1, DType::kF64);
  Backward(test::Project(stack(RandomTensor({1, 2, 4}, 1))), {}, {.observers = {&recorder}});
  EXPECT_EQ(recorder.ready, recorder.planned);
  EXPECT_EQ(recorder.ready.size(), 36u);
  EXPECT_TRUE(recorder.ready.front().starts_with("h.2.mlp.c_proj"));
  EXPECT_TRUE(recorder.ready.back().starts_with("h.0.ln_1"));
  EXPECT_TRUE(std::is_sorted(recorder.ready.begin(), recorder.ready.end(),
                             [](const auto& a, const auto& b) { return a[2] > b[2]; }));
}

// ---- Meta ----

TEST(MetaTest, AModelThatFitsNowhereHasShapesAndRunsWithoutBytes) {
  GetAllocator(kCpu).ResetPeak();
  const int64_t before = GetAllocator(kCpu).stats().peak_bytes;
  Stack stack(4, {.n_embd = 1 << 17, .n_head = 1 << 10});
  EXPECT_EQ(stack.NumParameters(), 4 * (12 * (int64_t{1} << 34) + 13 * (int64_t{1} << 17)));
  stack.Materialize(kMeta, 1, DType::kBF16);
  const Tensor x = Tensor::Empty({8, 4096, 1 << 17}, DType::kBF16, kMeta);
  const Tensor y = stack(x);
  EXPECT_EQ(y.Describe(), "bf16[8, 4096, 131072] on meta");
  Backward(y, Tensor::EmptyLike(y));
  for (const auto& p : stack.Parameters()) {
    EXPECT_EQ(p->grad().shape(), p->value().shape()) << p->name();
    EXPECT_TRUE(p->grad().device().is_meta());
  }
  EXPECT_LT(GetAllocator(kCpu).stats().peak_bytes, before + (1 << 20));
}

}  // namespace
}  // namespace lockstep::nn
