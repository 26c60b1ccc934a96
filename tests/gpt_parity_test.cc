// Tiny models of each family against PyTorch and transformers: the same weights, tokens and
// settings give the same logits, losses and gradient norms. tests/peers/ make_gpt2_parity.py and
// make_family_parity.py made the goldens.
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/thread_pool.h"
#include "data/token_file.h"
#include "models/gpt/hf/hf_format.h"
#include "models/train/step/trainer.h"
#include "optim/adamw.h"

namespace lockstep::models {
namespace {

std::vector<StepMetrics> Train(const std::string& folder, const Json& settings) {
  Gpt model(ReadHfConfig(folder));
  model.Materialize(kCpu, 0);
  LoadHfWeights(model, folder);
  const auto number = [&](const char* key) { return settings.at(key).get<double>(); };
  const auto integer = [&](const char* key) { return settings.at(key).get<int64_t>(); };
  optim::AdamW optimizer(model.Parameters(), {.beta1 = number("beta1"),
                                              .beta2 = number("beta2"),
                                              .eps = number("eps"),
                                              .weight_decay = number("weight_decay")});
  const std::shared_ptr<const data::TokenSource> tokens =
      std::make_shared<data::TokenFile>(folder + "/tokens.bin");
  data::Loader loader(tokens,
                      data::Sampler(data::Order::kSequential, 0, tokens->size(), integer("seq")),
                      {.batch_size = integer("batch"), .micro_batches = integer("accum")});
  Trainer trainer(model, optimizer,
                  optim::LrSchedule({.lr = number("lr"),
                                     .min_lr = number("min_lr"),
                                     .warmup = integer("warmup"),
                                     .decay_steps = integer("decay_steps")}),
                  loader, {.micro_batches = integer("accum"), .clip = number("clip")});
  std::vector<StepMetrics> out;
  while (trainer.step() < integer("steps")) out.push_back(trainer.Step());
  return out;
}

struct Golden {
  const char* name;
  size_t steps;
};

class GptParity : public testing::TestWithParam<Golden> {
 protected:
  std::string Folder() const { return std::string("tests/testdata/") + GetParam().name; }
};

TEST_P(GptParity, LossesAndGradientNormsOfPyTorch) {
  const auto golden = Json::parse(ReadFile(Folder() + "/steps.json"));
  const auto& steps = golden.at("steps");
  ASSERT_EQ(steps.size(), GetParam().steps);
  const std::vector<StepMetrics> ours = Train(Folder(), golden.at("settings"));
  ASSERT_EQ(ours.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const double norm = steps[i].at("grad_norm");
    EXPECT_NEAR(ours[i].loss, steps[i].at("loss").get<double>(), 2e-5) << "step " << i;
    EXPECT_NEAR(ours[i].grad_norm, norm, 1e-4 * norm) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GptParity,
                         testing::Values(Golden{"gpt2_parity", 20}, Golden{"llama_parity", 10},
                                         Golden{"llama_tied_parity", 10},
                                         Golden{"mixtral_parity", 10}, Golden{"qwen3_parity", 10},
                                         Golden{"qwen3_moe_parity", 10}, Golden{"qwen2_parity", 10},
                                         Golden{"mistral_parity", 10}, Golden{"gemma2_parity", 10},
                                         Golden{"gemma3_parity", 10}, Golden{"olmo2_parity", 10},
                                         Golden{"smollm3_parity", 10},
                                         Golden{"nanochat_parity", 10}),
                         [](const auto& info) { return std::string(info.param.name); });

class LlamaLogits : public testing::TestWithParam<const char*> {};

TEST_P(LlamaLogits, AreThoseOfTransformers) {
  const std::string folder = std::string("tests/testdata/") + GetParam();
  const auto golden = Json::parse(ReadFile(folder + "/logits.json"));
  Gpt model(ReadHfConfig(folder));
  model.Materialize(kCpu, 0);
  LoadHfWeights(model, folder);
  const data::TokenFile tokens(folder + "/tokens.bin");
  std::vector<int32_t> ids(golden.size());
  tokens.Read(0, ids);
  const NoGrad no_grad;
  const auto length = static_cast<int64_t>(ids.size());
  const Tensor logits = model(Tensor::FromVector(ids, {1, length}));
  const std::vector<float> ours = logits.ToVector<float>();
  ASSERT_EQ(length, 24);
  ASSERT_EQ(logits.dim(-1), static_cast<int64_t>(golden[0].size()));
  for (size_t i = 0; i < ours.size(); ++i) {
    const size_t t = i / golden[0].size(), v = i % golden[0].size();
    EXPECT_NEAR(ours[i], golden[t][v].get<double>(), 1e-5) << "position " << t << ", id " << v;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LlamaLogits,
                         testing::Values("llama_parity", "llama_tied_parity", "mixtral_parity",
                                         "qwen3_parity", "qwen3_moe_parity"));

}  // namespace
}  // namespace lockstep::models
