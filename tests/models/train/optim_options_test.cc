// Every option of an optimizer changes its updates.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "models/gpt/gpt.h"
#include "models/train/run_optimizer.h"
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
        "--optim.beta2=0.5", "--optim.eps=0.01", "--optim.weight_decay=0.5"}},
      {"sgd", {"--optim.momentum=0.5", "--optim.nesterov=false", "--optim.weight_decay=0.5"}},
      {"lion", {"--optim.beta1=0.1", "--optim.beta2=0.1", "--optim.weight_decay=0.5"}},
      {"muon",
       {"--optim.momentum=0.5", "--optim.nesterov=false", "--optim.beta1=0.5", "--optim.beta2=0.5",
        "--optim.eps=0.01", "--optim.weight_decay=0.5"}}};
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
