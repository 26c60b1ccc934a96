// Every option of an optimizer changes its updates.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "models/gpt/gpt.h"
#include "models/train/run_model.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

// The logits of a small GPT after three updates.
std::vector<float> Trained(const std::vector<std::string>& arguments) {
  Gpt model({.vocab_size = 11, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 12});
  model.Materialize(kCpu, 3);
  const auto optimizer = MakeOptimizer(ParsedRun(arguments).config.optim, model);
  const Tensor ids = Tensor::FromVector<int32_t>({1, 7, 3, 3, 10, 2, 9, 9}, {1, 8});
  const Tensor targets = Tensor::FromVector<int32_t>({7, 3, 3, 10, 2, 9, 9, 0}, {1, 8});
  StepState state(kCpu, 5);
  for (int64_t step = 0; step < 3; ++step) {
    const auto training = optimizer->BeginStep(state, step, 0.01);
    Backward(ops::SoftmaxCrossEntropy(model(ids), targets));
    optimizer->Step(state);
    optimizer->ZeroGrad();
  }
  return model(ids).ToVector<float>();
}

TEST(OptimOptions, EachDoesSomething) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"adamw",
       {"--optim.name=sgd", "--optim.name=lion", "--optim.name=muon", "--optim.beta1=0.5",
        "--optim.beta2=0.5", "--optim.eps=0.01", "--optim.weight_decay=0.5",
        "--optim.matrix_lr=0.02", "--optim.embedding_lr=0.02", "--optim.scalar_lr=0.02",
        "--optim.cautious_weight_decay=true", "--optim.decay_embeddings=false"}},
      {"sgd", {"--optim.momentum=0.5", "--optim.nesterov=false", "--optim.weight_decay=0.5"}},
      {"lion", {"--optim.beta1=0.1", "--optim.beta2=0.1", "--optim.weight_decay=0.5"}},
      {"muon",
       {"--optim.momentum=0.5", "--optim.nesterov=false", "--optim.beta1=0.5", "--optim.beta2=0.5",
        "--optim.eps=0.01", "--optim.weight_decay=0.5", "--optim.matrix_lr=0.02",
        "--optim.muon_scale=original", "--optim.muon_split=true", "--optim.muon_dtype=bf16",
        "--optim.cautious_weight_decay=true"}}};
  for (const auto& [name, changes] : cases) {
    const std::string base = "--optim.name=" + name;
    const std::vector<float> before = Trained({base});
    EXPECT_EQ(Trained({base}), before) << name;
    for (const std::string& change : changes) {
      EXPECT_NE(Trained({base, change}), before) << name << " " << change;
    }
  }
  EXPECT_EQ(Trained({"--optim.name=adamw"}), Trained({}));
}

// SGD without momentum ignores optim.nesterov, whose default is true.
TEST(OptimOptions, SgdWithoutMomentum) {
  const std::vector<std::string> plain = {"--optim.name=sgd", "--optim.momentum=0"};
  std::vector<std::string> said = plain;
  said.push_back("--optim.nesterov=false");
  EXPECT_EQ(Trained(plain), Trained(said));
}

TEST(OptimOptions, WeightDecayFalls) {
  for (const std::string name : {"adamw", "muon"}) {
    std::vector<std::string> arguments = {"--optim.name=" + name, "--optim.decay_steps=4",
                                          "--optim.warmup=0"};
    const std::vector<float> before = Trained(arguments);
    arguments.push_back("--optim.weight_decay_schedule=linear");
    EXPECT_NE(Trained(arguments), before) << name;
  }
}

// AdamW's first step moves an element by the rate.
TEST(OptimOptions, RatesOfTheirOwn) {
  GptConfig config{.vocab_size = 11, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 12};
  config.tie_embeddings = false;
  config.bias = true;
  Gpt model(config);
  model.Materialize(kCpu, 3);
  OptimOptions options{.lr = 0.01,
                       .matrix_lr = 0.02,
                       .embedding_lr = 0.03,
                       .unembedding_lr = 0.04,
                       .scalar_lr = 0.05,
                       .weight_decay = 0};
  const auto optimizer = MakeOptimizer(options, model);
  std::map<std::string, std::vector<float>> before;
  for (const auto& p : optimizer->parameters()) before[p->name()] = p->value().ToVector<float>();
  StepState state(kCpu, 5);
  const auto training = optimizer->BeginStep(state, 0, options.lr);
  for (const auto& p : optimizer->parameters()) {
    p->leaf().SetGrad(Tensor::Full(p->value().shape(), 1.0, DType::kF32));
  }
  optimizer->Step(state);
  for (const auto& p : optimizer->parameters()) {
    const std::string& name = p->name();
    const double rate = name == "lm_head.weight"                           ? 0.04
                        : name == "wte.weight" || name == "wpe.weight"     ? 0.03
                        : name.starts_with("h.") && p->value().ndim() == 2 ? 0.02
                                                                           : 0.05;
    EXPECT_NEAR(before[name][0] - p->value().ToVector<float>()[0], rate, 1e-6) << name;
  }
}

// Queries, of two heads, keys and values, of one; gate and up: each segment of Muon's update has
// its own norm.
TEST(OptimOptions, MuonSplitsWhatIsFused) {
  GptConfig config{.vocab_size = 11, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 12};
  config.n_kv_head = 1;
  config.activation = nn::MlpActivation::kSwiGlu;
  config.n_inner = 20;
  Gpt model(config);
  model.Materialize(kCpu, 3);
  OptimOptions options{
      .name = "muon", .lr = 1, .muon_scale = "original", .muon_split = true, .weight_decay = 0};
  const auto optimizer = MakeOptimizer(options, model);
  StepState state(kCpu, 5);
  const auto training = optimizer->BeginStep(state, 0, options.lr);
  for (const auto& p : optimizer->parameters()) {
    p->leaf().SetGrad(Tensor::Full(p->value().shape(), 1.0, DType::kF32));
    p->value().Detach().Fill(0);
  }
  optimizer->Step(state);
  // Of equal elements, X is the matrix of equal elements whose one singular value is what Newton
  // and Schulz make of 1.
  double value = 1;
  for (int step = 0; step < 5; ++step) {
    value = 3.4445 * value - 4.775 * std::pow(value, 3) + 2.0315 * std::pow(value, 5);
  }
  const auto expect = [&](const std::string& name, const std::vector<int64_t>& segments) {
    for (const auto& p : optimizer->parameters()) {
      if (p->name() != name) continue;
      const std::vector<float> w = p->value().ToVector<float>();
      const int64_t columns = p->value().dim(1);
      int64_t row = 0;
      for (const int64_t rows : segments) {
        const double r = static_cast<double>(rows), c = static_cast<double>(columns);
        const double want = value * std::sqrt(std::max(1.0, r / c)) / std::sqrt(r * c);
        for (const int64_t at : {row, row + rows - 1}) {
          EXPECT_NEAR(-w[static_cast<size_t>(at * columns)], want, 1e-5) << name << " " << at;
        }
        row += rows;
      }
      EXPECT_EQ(row, p->value().dim(0));
    }
  };
  expect("h.0.attn.c_attn.weight", {12, 6, 6});
  expect("h.0.mlp.c_fc.weight", {20, 20});
  expect("h.0.attn.c_proj.weight", {12});
}

TEST(OptimOptions, MuonTakesTheMatricesOfTheBlocks) {
  Gpt model({.vocab_size = 11, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 12});
  model.Materialize(kCpu, 3);
  OptimOptions options;
  options.name = "muon";
  int matrices = 0;
  for (const auto& [name, tensor] : MakeOptimizer(options, model)->NamedState()) {
    if (!name.ends_with(".momentum_buffer")) continue;
    EXPECT_THAT(name, testing::AllOf(testing::StartsWith("h."), testing::HasSubstr(".weight")));
    EXPECT_EQ(tensor.ndim(), 2);
    ++matrices;
  }
  EXPECT_EQ(matrices, 2 * 4);
  // Rows of routers and gates are scores, each by itself.
  GptConfig config{.vocab_size = 11, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 12};
  config.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 8, .n_shared = 8};
  config.mixture.shared_gate = true;
  Gpt mixture(config);
  mixture.Materialize(kCpu, 3);
  for (const auto& [name, tensor] : MakeOptimizer(options, mixture)->NamedState()) {
    if (!name.ends_with(".momentum_buffer")) continue;
    EXPECT_EQ(name.find("router"), std::string::npos) << name;
    EXPECT_EQ(name.find("shared_gate"), std::string::npos) << name;
    --matrices;
  }
  EXPECT_EQ(matrices, 2 * 4 - 2 * 4);  // two of attention, two of the shared expert
}

}  // namespace
}  // namespace lockstep::models
