// Low-rank adapters: against plain loops of doubles, and their laws.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "nn/init.h"
#include "nn/lora/add_lora.h"
#include "nn/lora/quantized_linear.h"
#include "nn/mixture/mixture_of_experts.h"
#include "nn/mlp.h"
#include "nn/recompute.h"
#include "nn/sequential.h"
#include "nn/transformer_block.h"
#include "optim/adamw.h"
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

constexpr uint64_t kSeed = 7;

// Three slices, of which the middle one has no adapter.
std::vector<LoraSlice> Slices() {
  return {{.name = "q", .rows = 5, .rank = 2, .scale = 0.5},
          {.name = "k", .rows = 3},
          {.name = "v", .rows = 4, .rank = 3, .scale = -2}};
}

// The weight plus scale B A in the rows of its slices.
Matrix MergedReference(const Module& m, const std::string& at,
                       const std::vector<LoraSlice>& slices) {
  Matrix w = ParameterOf(m, at + "weight");
  const Matrix a = ParameterOf(m, at + "lora_A.weight");
  int64_t row = 0, rank = 0;
  for (const LoraSlice& s : slices) {
    if (s.rank > 0) {
      const std::string name = s.name.empty() ? "" : s.name + ".";
      const Matrix b = ParameterOf(m, at + "lora_B." + name + "weight");
      for (int64_t i = 0; i < s.rows; ++i) {
        for (int64_t j = 0; j < w.cols; ++j) {
          for (int64_t k = 0; k < s.rank; ++k) {
            w(row + i, j) += s.scale * b(i, k) * a(rank + k, j);
          }
        }
      }
    }
    row += s.rows;
    rank += s.rank;
  }
  return w;
}

// A Linear with an adapter of random numbers, by its name "fc".
struct Adapted : Sequential {
  explicit Adapted(const LinearOptions& options = {}, double dropout = 0) {
    const Linear linear(6, 12, options);
    Add(std::make_shared<LoraLinear>(linear, Slices(), dropout));
  }
};

TEST(LoraTest, NamesAreThoseOfTheBaseAndItsAdapter) {
  const Adapted m;
  EXPECT_THAT(Describe(m),
              ElementsAre("0.weight [12, 6] decays", "0.bias [12]", "0.lora_A.weight [5, 6] decays",
                          "0.lora_B.q.weight [5, 2] decays", "0.lora_B.v.weight [4, 3] decays"));
  const LoraLinear whole(Linear(3, 4), {{.rows = 4, .rank = 2}});
  EXPECT_THAT(Describe(whole),
              ElementsAre("weight [4, 3] decays", "bias [4]", "lora_A.weight [2, 3] decays",
                          "lora_B.weight [4, 2] decays"));
}

TEST(LoraTest, ASumOfProducts) {
  Adapted m;
  m.Materialize(kCpu, kSeed, DType::kF64);
  test::Randomize(m, 3);
  const Tensor x = RandomTensor({2, 3, 6}, 1);
  const Matrix merged = MergedReference(m, "0.", Slices());
  const Matrix want = test::LinearReference(ToMatrix(x), merged, ParameterOf(m, "0.bias"));
  EXPECT_LT(Difference(ToMatrix(m(x)), want), 1e-13);
}

TEST(LoraTest, AnActivationIsAppliedToTheSum) {
  Adapted m({.activation = Activation::kGelu});
  m.Materialize(kCpu, kSeed, DType::kF64);
  test::Randomize(m, 3);
  const Tensor x = RandomTensor({7, 6}, 1);
  const Matrix merged = MergedReference(m, "0.", Slices());
  const Matrix want =
      test::GeluReference(test::LinearReference(ToMatrix(x), merged, ParameterOf(m, "0.bias")));
  EXPECT_LT(Difference(ToMatrix(m(x)), want), 1e-13);
}

TEST(LoraTest, GradientsOfAllParametersAndOfTheInput) {
  for (const Activation activation : {Activation::kNone, Activation::kGelu}) {
    Adapted m({.activation = activation});
    m.Materialize(kCpu, kSeed, DType::kF64);
    test::Randomize(m, 3);
    Tensor x = RandomTensor({2, 3, 6}, 1);
    x.SetRequiresGrad(true);
    auto checked = test::ParametersToCheck(m);
    checked.emplace_back("x", x);
    test::CheckGradients(checked, [&] { return test::Project(m(x)); });
  }
}

TEST(LoraTest, ABranchWithAnOpenBias) {
  LoraBranchLinear m(BranchLinear(6, 4), {{.rows = 4, .rank = 3, .scale = 0.25}});
  m.Materialize(kCpu, kSeed, DType::kF64);
  test::Randomize(m, 3);
  Tensor x = RandomTensor({2, 3, 6}, 1);
  const ops::Branch y = m(x);
  EXPECT_TRUE(y.bias.defined());
  const Matrix merged = MergedReference(m, "", {{.rows = 4, .rank = 3, .scale = 0.25}});
  EXPECT_LT(Difference(ToMatrix(ops::Complete(y)),
                       test::LinearReference(ToMatrix(x), merged, ParameterOf(m, "bias"))),
            1e-13);
  x.SetRequiresGrad(true);
  auto checked = test::ParametersToCheck(m);
  checked.emplace_back("x", x);
  test::CheckGradients(checked, [&] { return test::Project(ops::Complete(m(x))); });
}

// ---- In a model. ----

struct Model : ModuleOf<Tensor(const Tensor&)> {
  explicit Model(bool llama = false, bool recompute = false) {
    TransformerOptions options{.n_embd = 12, .n_head = 2, .n_inner = 20, .rotary = nullptr};
    if (llama) {
      options.bias = false;
      options.norm = NormKind::kRmsNorm;
      options.activation = MlpActivation::kSwiGlu;
    }
    for (int i = 0; i < 2; ++i) {
      const auto block = std::make_shared<TransformerBlock>(options);
      h.Add(recompute ? std::shared_ptr<Block>(Recompute(block)) : block);
    }
  }
  Tensor Forward(const Tensor& x) override {
    ResidualStream stream = x;
    for (int64_t i = 0; i < h.size(); ++i) stream = h[i](std::move(stream));
    return Complete(stream);
  }
  ChildList<Block> h{this, "h"};
};

// Fills the zeros of B too, so that the adapters have an effect.
void FillAdapters(Module& model) {
  const NoGrad no_grad;
  for (LoraAdapter* adapter : LoraAdapters(model)) {
    for (size_t i = 0; i < adapter->slices().size(); ++i) {
      if (const auto& b = adapter->b(i)) {
        b->value().CopyFrom(RandomTensor(b->value().shape(), static_cast<unsigned>(i) + 5,
                                         b->value().dtype(), -0.1, 0.1));
      }
    }
  }
}

std::vector<double> Values(const Tensor& t) { return t.To(DType::kF64).ToVector<double>(); }

std::map<std::string, std::vector<double>> Weights(const Module& model) {
  std::map<std::string, std::vector<double>> out;
  for (const auto& [name, p] : model.NamedParameters()) out[name] = Values(p->value().Detach());
  return out;
}

const LoraOptions kOptions{.rank = 3, .alpha = 6};
const std::vector<std::string> kAll = {"h.*.attn.c_*", "h.*.mlp.c_*"};

TEST(AddLoraTest, AtFirstNothingChanges) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool llama : {false, true}) {
      Model m(llama);
      m.Materialize(kCpu, kSeed, dtype);
      const Tensor x = RandomTensor({2, 5, 12}, 1, dtype);
      const auto without = Values(m(x));
      const auto weights = Weights(m);
      AddLora(m, kAll, kOptions, kSeed);
      EXPECT_EQ(LoraAdapters(m).size(), 8u);
      const auto before = Values(m(x));
      // Of 16 bits a GELU that is no part of the product sees the rounded sum.
      const bool exact = llama || dtype == DType::kF32;
      if (exact) {
        EXPECT_EQ(before, without) << dtype << llama;
      }
      FillAdapters(m);
      EXPECT_NE(Values(m(x)), before);
      {
        const LoraDisabled disabled;
        EXPECT_EQ(Values(m(x)), before);
        EXPECT_FALSE(m(x).requires_grad());
      }
      EXPECT_TRUE(m(x).requires_grad());
      RemoveLora(m);
      EXPECT_EQ(Values(m(x)), without);
      EXPECT_EQ(Weights(m), weights);
      for (const auto& p : m.Parameters()) EXPECT_TRUE(p->trainable());
    }
  }
}

TEST(AddLoraTest, RemovingMakesTrainableWhatWasBefore) {
  Model m;
  m.Materialize(kCpu, kSeed);
  std::vector<bool> before;
  for (const auto& p : m.Parameters()) {
    p->SetTrainable(before.size() % 3 != 0);
    before.push_back(p->trainable());
  }
  AddLora(m, {"h.*.mlp.c_fc"}, kOptions, kSeed);
  AddLora(m, {"h.*.attn.c_attn"}, kOptions, kSeed);
  for (const auto& p : m.Parameters()) {
    const bool own = p->name().find(".lora_") != std::string::npos;
    EXPECT_EQ(p->trainable(), own) << p->name();
  }
  RemoveLora(m);
  std::vector<bool> after;
  for (const auto& p : m.Parameters()) after.push_back(p->trainable());
  EXPECT_EQ(after, before);
}

// The values of A and B follow from seed and name alone.
TEST(AddLoraTest, BeforeAndAfterMaterializeTheSameValues) {
  Model before, after;
  AddLora(before, kAll, kOptions);
  before.Materialize(kCpu, kSeed);
  after.Materialize(kCpu, kSeed);
  AddLora(after, kAll, kOptions, kSeed);
  EXPECT_EQ(Weights(before), Weights(after));
  const Matrix a = ParameterOf(after, "h.1.attn.c_attn.lora_A.weight");
  const double bound = 1 / std::sqrt(12.0);
  double most = 0;
  for (const double v : a.data) most = std::max(most, std::abs(v));
  EXPECT_GT(most, 0.8 * bound);
  EXPECT_LE(most, bound);
  for (const double v : ParameterOf(after, "h.1.attn.c_attn.lora_B.weight").data) EXPECT_EQ(v, 0);
}

TEST(AddLoraTest, OnlyAdaptersAreTrained) {
  Model m;
  m.Materialize(kCpu, kSeed);
  const auto base = Weights(m);
  AddLora(m, {"h.*.attn.c_attn"}, kOptions, kSeed);
  optim::AdamW optimizer(m.Parameters(), {});
  StepState state(kCpu, kSeed);
  const Tensor x = RandomTensor({2, 5, 12}, 1, DType::kF32);
  for (int i = 0; i < 3; ++i) {
    const auto training = optimizer.BeginStep(state, i, 1e-2);
    Backward(test::Project(m(x).To(DType::kF64)));
    optimizer.Step(state);
    for (const auto& [name, p] : m.NamedParameters()) {
      const bool adapter = name.find(".lora_") != std::string::npos;
      EXPECT_EQ(p->trainable(), adapter) << name;
      EXPECT_EQ(p->grad().defined(), adapter) << name;
    }
    m.ZeroGrad();
  }
  const auto now = Weights(m);
  for (const auto& [name, values] : base) EXPECT_EQ(now.at(name), values) << name;
  for (const auto& [name, values] : now) {
    if (base.contains(name) || name.find("lora_B") == std::string::npos) continue;
    EXPECT_NE(values, std::vector<double>(values.size(), 0.0)) << name;
  }
  EXPECT_EQ(optimizer.parameters().size(), 4u);
}

TEST(AddLoraTest, RecomputedBlocksHaveTheSameBits) {
  std::vector<std::vector<double>> gradients[2];
  for (const bool recompute : {false, true}) {
    Model m(/*llama=*/false, recompute);
    AddLora(m, kAll, {.rank = 3, .alpha = 6, .dropout = 0.5});
    m.Materialize(kCpu, kSeed);
    FillAdapters(m);
    StepState state(kCpu, kSeed);
    optim::AdamW optimizer(m.Parameters(), {});
    const auto training = optimizer.BeginStep(state, 0, 1e-2);
    Backward(test::Project(m(RandomTensor({2, 5, 12}, 1, DType::kF32)).To(DType::kF64)));
    for (const auto& p : m.Parameters()) {
      if (p->trainable()) gradients[recompute].push_back(Values(p->grad()));
    }
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(AddLoraTest, DropoutIsOfTheAdaptersInputAlone) {
  Adapted m({}, /*dropout=*/0.5), plain;
  for (Module* module : {static_cast<Module*>(&m), static_cast<Module*>(&plain)}) {
    module->Materialize(kCpu, kSeed);
    FillAdapters(*module);
  }
  const Tensor x = RandomTensor({64, 6}, 1, DType::kF32);
  EXPECT_EQ(Values(m(x)), Values(plain(x)));  // not in a step
  const TrainingScope training(StepState(kCpu, kSeed));
  const auto dropped = Values(m(x)), whole = Values(plain(x));
  EXPECT_NE(dropped, whole);
  for (size_t i = 0; i < dropped.size(); ++i) {
    const size_t row = i % 12;
    if (row < 5 || row >= 8) continue;
    EXPECT_EQ(dropped[i], whole[i]);  // of the slice without an adapter
  }
}

TEST(MergeLoraTest, MergedWeightsGiveTheSameResults) {
  for (const bool llama : {false, true}) {
    Model m(llama);
    AddLora(m, kAll, kOptions);
    m.Materialize(kCpu, kSeed);
    FillAdapters(m);
    const Matrix want = MergedReference(m, "h.0.attn.c_attn.",
                                        {{.rows = 36, .rank = 3, .scale = kOptions.scale()}});
    const Tensor x = RandomTensor({2, 5, 12}, 1, DType::kF32);
    const Matrix before = ToMatrix(m(x).Detach());
    const auto losses = MergeLora(m);
    EXPECT_LT(Difference(ToMatrix(m(x).Detach()), before), 1e-6);
    EXPECT_LT(Difference(ParameterOf(m, "h.0.attn.c_attn.weight"), want), 1e-7);
    ASSERT_EQ(losses.size(), 8u);
    EXPECT_EQ(losses[0].path, "h.0.attn.c_attn");
    for (const LoraMergeLoss& loss : losses) EXPECT_LT(loss.lost, 1e-5);
    EXPECT_TRUE(LoraAdapters(m).empty());
  }
}

// In bf16 a step between neighbouring numbers is 2^-8 of them or more: an update of a small part of
// that is lost but where the weights happen to be small.
TEST(MergeLoraTest, InBf16ASmallUpdateIsMostlyLost) {
  Sequential m;
  m.Add<Linear>(256, 256, LinearOptions{.bias = false, .weight_init = Normal(0, 0.02)});
  m.Materialize(kCpu, kSeed, DType::kBF16);
  AddLora(m, {"0"}, {.rank = 16, .alpha = 16}, kSeed);
  LoraAdapter& adapter = *LoraAdapters(m)[0];
  const auto set_size = [&](double relative) {
    // |B A| of random numbers, relative to |W|.
    const double a = 1 / std::sqrt(3.0 * 256), w = 0.02;
    const double b = relative * w / (a * 4);
    const NoGrad no_grad;
    adapter.b(0)->value().CopyFrom(
        RandomTensor({256, 16}, 5, DType::kF64, -b * std::sqrt(3.0), b * std::sqrt(3.0)));
  };
  const Matrix before = ParameterOf(m, "0.weight");
  set_size(0.0005);
  const double lost = MergeLora(m)[0].lost;
  EXPECT_GT(lost, 0.8);
  const Matrix after = ParameterOf(m, "0.weight");
  int64_t same = 0;
  for (size_t i = 0; i < after.data.size(); ++i) same += before.data[i] == after.data[i];
  EXPECT_GT(static_cast<double>(same), 0.8 * 256 * 256);
}

// ---- Experts. ----

// Three experts with adapters, of which the middle one has no rows.
struct AdaptedExperts : ModuleOf<Tensor(const Tensor&)> {
  explicit AdaptedExperts(double dropout = 0) {
    const GroupedLinear linear(3, 6, 12, Normal(0, 1));
    fc.Replace(std::make_shared<LoraGroupedLinear>(linear, Slices(), dropout));
  }
  Tensor Forward(const Tensor& x) override {
    return fc(x, Tensor::FromVector<int32_t>({0, 3, 3, 7}, {4}));
  }
  Child<ExpertsLayer> fc{this, "fc", std::make_shared<GroupedLinear>(1, 1, 1, Constant(0))};
};

TEST(LoraExpertsTest, EachHasASumOfProductsOfItsOwn) {
  AdaptedExperts m;
  EXPECT_THAT(
      Describe(m),
      ElementsAre("fc.weight [3, 12, 6] decays", "fc.lora_A.weight [3, 5, 6] decays",
                  "fc.lora_B.q.weight [3, 5, 2] decays", "fc.lora_B.v.weight [3, 4, 3] decays"));
  m.Materialize(kCpu, kSeed, DType::kF64);
  test::Randomize(m, 3);
  Tensor x = RandomTensor({7, 6}, 1);
  const Matrix in = ToMatrix(x), w = ParameterOf(m, "fc.weight");
  const Matrix a = ParameterOf(m, "fc.lora_A.weight");
  Matrix want{7, 12, std::vector<double>(7 * 12)};
  for (int64_t r = 0; r < 7; ++r) {
    const int64_t e = r < 3 ? 0 : 2;
    int64_t row = 0, rank = 0;
    for (const LoraSlice& s : Slices()) {
      const Matrix b = s.rank > 0 ? ParameterOf(m, "fc.lora_B." + s.name + ".weight") : Matrix{};
      for (int64_t i = 0; i < s.rows; ++i) {
        for (int64_t j = 0; j < 6; ++j) {
          double merged = w(e * 12 + row + i, j);
          for (int64_t k = 0; k < s.rank; ++k) {
            merged += s.scale * b(e * s.rows + i, k) * a(e * 5 + rank + k, j);
          }
          want(r, row + i) += merged * in(r, j);
        }
      }
      row += s.rows;
      rank += s.rank;
    }
  }
  EXPECT_LT(Difference(ToMatrix(m(x)), want), 1e-13);
  x.SetRequiresGrad(true);
  auto checked = test::ParametersToCheck(m);
  checked.emplace_back("x", x);
  test::CheckGradients(checked, [&] { return test::Project(m(x)); });
}

// Rows are no samples: those of one micro-batch must not have masks of the next one's, shifted.
TEST(LoraExpertsTest, DropoutDrawsEachMicroBatchAnew) {
  const Tensor x = Tensor::Full({7, 6}, 1, DType::kF32);
  const auto dropped = [&](int64_t first_sample) {
    AdaptedExperts m(/*dropout=*/0.5);
    m.Materialize(kCpu, kSeed);
    StepState state(kCpu, kSeed);
    state.SetFirstSample(first_sample);
    const TrainingScope training(state);
    const auto adapted = std::dynamic_pointer_cast<LoraGroupedLinear>(m.fc.module());
    return Values(adapted->lora_dropout()(x.View({1, 7, 6})));
  };
  const auto first = dropped(0), second = dropped(1);
  EXPECT_EQ(first, dropped(0));
  EXPECT_NE(first, second);
  EXPECT_FALSE(std::equal(first.begin() + 6, first.end(), second.begin()));
}

struct Mixture : MixtureOfExperts {
  explicit Mixture(MlpActivation activation = MlpActivation::kSwiGlu)
      : MixtureOfExperts({.n_embd = 12,
                          .n_head = 2,
                          .init_std = 0.5,
                          .residual_std = 0.5,
                          .activation = activation,
                          .rotary = nullptr,
                          .mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 10}}) {}
};

TEST(LoraExpertsTest, InAMixtureTheyAreAddedMergedAndRemoved) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Mixture m;
    m.Materialize(kCpu, kSeed, dtype);
    const Tensor x = RandomTensor({2, 5, 12}, 1, dtype);
    const auto run = [&] { return ops::Complete(m(x)).Detach(); };
    const auto without = Values(run());
    const auto weights = Weights(m);
    AddLora(m, {"experts.*"}, kOptions, kSeed);
    ASSERT_EQ(LoraAdapters(m).size(), 2u);
    EXPECT_EQ(Values(run()), without);
    FillAdapters(m);
    const auto adapted = run();
    EXPECT_NE(Values(adapted), without);
    {
      const LoraDisabled disabled;
      EXPECT_EQ(Values(run()), without);
    }
    Backward(test::Project(ops::Complete(m(x)).To(DType::kF64)));
    for (const auto& p : m.Parameters()) {
      const bool own = p->name().find(".lora_") != std::string::npos;
      EXPECT_EQ(p->grad().defined(), own) << p->name();
    }
    if (dtype == DType::kF32) {
      const auto losses = MergeLora(m);
      ASSERT_EQ(losses.size(), 8u);
      EXPECT_EQ(losses[1].path, "experts.c_fc[1]");
      for (const LoraMergeLoss& loss : losses) EXPECT_LT(loss.lost, 1e-5);
      EXPECT_LT(Difference(ToMatrix(run()), ToMatrix(adapted)), 1e-5);
    } else {
      RemoveLora(m);
      EXPECT_EQ(Weights(m), weights);
      EXPECT_EQ(Values(run()), without);
    }
    EXPECT_TRUE(LoraAdapters(m).empty());
    for (const auto& p : m.Parameters()) EXPECT_TRUE(p->trainable());
  }
}

// ---- What is wrong, and what to do. ----

TEST(LoraErrorTest, WhatCannotBeMergedChangesNothing) {
  Model m;
  m.Materialize(kCpu, kSeed);
  AddLora(m, kAll, kOptions, kSeed);
  FillAdapters(m);
  QuantizeLinear(m, LoraAdapters(m).back()->adapter_path(), {});
  const Tensor x = RandomTensor({2, 5, 12}, 1, DType::kF32);
  const auto before = Values(m(x));
  const auto weights = Weights(m);
  EXPECT_THAT(MessageOf<ArgumentError>([&] { MergeLora(m); }),
              HasSubstr("is not a plain linear layer, so nothing can be merged into it"));
  EXPECT_EQ(LoraAdapters(m).size(), 8u);
  EXPECT_EQ(Weights(m), weights);
  EXPECT_EQ(Values(m(x)), before);
}

TEST(LoraErrorTest, SaysWhatThereIs) {
  Model m;
  EXPECT_THAT(MessageOf<ArgumentError>([&] { AddLora(m, {"h.*.q_proj"}, kOptions); }),
              testing::AllOf(HasSubstr("'h.*.q_proj' matches no linear layer"),
                             HasSubstr("h.0.attn.c_attn, h.0.attn.c_proj, h.0.mlp.c_fc")));
  const std::string large =
      MessageOf<ArgumentError>([&] { AddLora(m, {"h.*.mlp.c_fc"}, {.rank = 13}); });
  EXPECT_THAT(large, testing::AllOf(HasSubstr("h.0.mlp.c_fc"), HasSubstr("rank 13"),
                                    HasSubstr("[20, 12]"), HasSubstr("at most 12")));
  EXPECT_TRUE(LoraAdapters(m).empty());
  for (const auto& p : m.Parameters()) EXPECT_TRUE(p->trainable());
  AddLora(m, {"h.0.mlp.c_fc"}, kOptions);
  EXPECT_THAT(MessageOf<ArgumentError>([&] { AddLora(m, {"h.0.mlp.c_fc"}, kOptions); }),
              HasSubstr("without an adapter"));
  EXPECT_THAT(MessageOf<ArgumentError>([] { Adapted().ReplaceChild("1", nullptr); }),
              HasSubstr("no child module"));
  EXPECT_THAT(MessageOf<ArgumentError>([] { LoraLinear(Linear(6, 11), Slices()); }),
              HasSubstr("12 rows together, and the matrix has 11"));
  Model plain;
  EXPECT_THAT(MessageOf<ArgumentError>([&] { RemoveLora(plain); }), HasSubstr("no adapters"));
}

}  // namespace
}  // namespace lockstep::nn
