// A tiny GPT-2 against PyTorch: the same weights, tokens and settings give the same losses and
// gradient norms. tests/peers/make_gpt2_parity.py made the goldens.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/thread_pool.h"
#include "data/token_file.h"
#include "models/hf_format.h"
#include "models/trainer.h"
#include "optim/adamw.h"

namespace lockstep::models {
namespace {

const std::string kFolder = "tests/testdata/gpt2_parity";

std::vector<StepMetrics> Train(const nlohmann::json& settings, int64_t steps) {
  Gpt model(ReadHfConfig(kFolder));
  model.Materialize(kCpu, 0);
  LoadHfWeights(model, kFolder);
  const auto number = [&](const char* key) { return settings.at(key).get<double>(); };
  const auto integer = [&](const char* key) { return settings.at(key).get<int64_t>(); };
  optim::AdamW optimizer(model.Parameters(), {.beta1 = number("beta1"),
                                              .beta2 = number("beta2"),
                                              .eps = number("eps"),
                                              .weight_decay = number("weight_decay")});
  const std::shared_ptr<const data::TokenSource> tokens =

      std::make_shared<data::TokenFile>(kFolder + "/tokens.bin");
  data::Loader loader(tokens,
                      data::Sampler(data::Order::kSequential, 0, tokens->size(), integer("seq")),
                      {.batch_size = integer("batch"), .accum = integer("accum")});
  Trainer trainer(model, optimizer,
                  optim::LrSchedule({.lr = number("lr"),
                                     .min_lr = number("min_lr"),
                                     .warmup = integer("warmup"),
                                     .decay_steps = integer("decay_steps")}),
                  loader, {.grad_accum = integer("accum"), .clip = number("clip")});
  std::vector<StepMetrics> out;
  while (trainer.step() < steps) out.push_back(trainer.Step());
  return out;
}

TEST(GptParity, LossesAndGradientNormsOfPyTorch) {
  const auto golden = nlohmann::json::parse(ReadFile(kFolder + "/steps.json"));
  const auto& steps = golden.at("steps");
  ASSERT_EQ(steps.size(), 20u);
  const std::vector<StepMetrics> ours = Train(golden.at("settings"), 20);
  for (size_t i = 0; i < steps.size(); ++i) {
    const double norm = steps[i].at("grad_norm");
    EXPECT_NEAR(ours[i].loss, steps[i].at("loss").get<double>(), 2e-5) << "step " << i;
    EXPECT_NEAR(ours[i].grad_norm, norm, 1e-4 * norm) << "step " << i;
  }
}

}  // namespace
}  // namespace lockstep::models
