// Training mixtures of experts: loads, biases, checkpoints.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/report/run_history.h"
#include "models/train/step/trainer.h"
#include "optim/adamw.h"
#include "tests/message_of.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

GptConfig Mixture() {
  GptConfig c = SmallGpt(0);
  c.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 12};
  return c;
}

GptConfig WithBiases() {
  GptConfig c = Mixture();
  c.mixture.router.score = RouterScore::kSigmoid;
  c.mixture.bias_rate = 0.05;
  return c;
}

// A run of a single process that can be saved, and continued by another.
struct Training {
  explicit Training(const GptConfig& config, int64_t first_step = 0, const std::string& from = "",
                    std::optional<LossScaleOptions> scaling = {})
      : model(config), tokens(Tokens(300)) {
    model.Materialize(kCpu, 4, scaling ? DType::kF16 : DType::kF32);
    if (!from.empty()) LoadWeights(from, model);
    optimizer = std::make_unique<optim::AdamW>(model.Parameters());
    if (!from.empty()) LoadOptimizerState(from, *optimizer);
    loader = std::make_unique<data::Loader>(tokens, Shuffled(*tokens),
                                            data::BatchLayout{.batch_size = 2, .micro_batches = 2},
                                            first_step);
    trainer = std::make_unique<Trainer>(
        model, *optimizer, SmallSchedule(), *loader,
        TrainerOptions{.first_step = first_step, .micro_batches = 2, .loss_scaling = scaling});
  }

  void Save(const std::string& folder, bool parts) {
    RemoveTree(folder);
    MakeDirectories(folder);
    const CheckpointFiles files = CollectCheckpoint({.step = trainer->step()}, model, *optimizer,
                                                    nullptr, {.parts = parts}, nullptr);
    for (const auto& [name, items] : files.tensors) {
      FileWriter out(JoinPath(folder, name));
      WriteSafetensors(out, items);
      out.Close();
    }
    for (const auto& [name, text] : files.texts) WriteFileAtomically(JoinPath(folder, name), text);
  }

  Gpt model;
  std::shared_ptr<const data::TokenSource> tokens;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<Trainer> trainer;
};

TEST(MixtureTraining, MetricsTellHowEvenTheLoadIs) {
  Training run(Mixture()), dense(SmallGpt(0));
  RunHistory history;
  for (int i = 0; i < 3; ++i) {
    const StepMetrics m = run.trainer->Step();
    // Of 4 experts, two of which each token has: no load is above twice the mean.
    EXPECT_GE(m.expert_most, 1);
    EXPECT_LE(m.expert_most, 2);
    EXPECT_GE(m.expert_least, 0);
    EXPECT_LE(m.expert_least, 1);
    EXPECT_THAT(ToJson(m), HasSubstr("\"expert_most\":"));
    history.Add(*ParseMetrics(ToJson(m)));
  }
  EXPECT_EQ(history.expert_most.count(), 3);
  EXPECT_EQ(history.expert_least.count(), 3);
  EXPECT_EQ(dense.trainer->Step().expert_most, 0);
}

TEST(MixtureTraining, BiasesMoveByOneRateAStep) {
  Training run(WithBiases());
  const auto biases = run.model.NamedBuffers();
  ASSERT_EQ(biases.size(), 2u);
  EXPECT_EQ(biases[0].first, "h.0.mlp.router.bias");
  run.trainer->Step();
  bool moved = false;
  for (const auto& [name, bias] : biases) {
    for (const float b : bias.ToVector<float>()) {
      EXPECT_TRUE(b == 0 || std::abs(b) == 0.05f) << name << " " << b;
      moved |= b != 0;
    }
  }
  EXPECT_TRUE(moved);
}

TEST(MixtureTraining, BiasesStayWhereAnUpdateIsSkipped) {
  Training run(WithBiases(), 0, "", LossScaleOptions{.init = 0x1p40, .backoff = 0x1p-30});
  const Tensor bias = run.model.NamedBuffers().at(0).second;
  EXPECT_TRUE(run.trainer->Step().skipped);
  EXPECT_THAT(bias.ToVector<float>(), testing::Each(0));
  EXPECT_FALSE(run.trainer->Step().skipped);
  EXPECT_THAT(bias.ToVector<float>(), testing::Contains(testing::Ne(0)));
}

TEST(MixtureTraining, ABiasedRunContinuesToTheSameBits) {
  for (const bool parts : {false, true}) {
    const std::string folder = JoinPath(testing::TempDir(), StrCat("mixture_", parts));
    Training whole(WithBiases()), half(WithBiases());
    for (int i = 0; i < 3; ++i) half.trainer->Step();
    half.Save(folder, parts);
    Training rest(ReadHfConfig(folder), 3, folder);
    for (int i = 0; i < 6; ++i) {
      const StepMetrics m = whole.trainer->Step();
      if (i < 3) continue;
      EXPECT_EQ(rest.trainer->Step().loss, m.loss) << "step " << i;
    }
    EXPECT_EQ(WeightsOf(rest.model), WeightsOf(whole.model));
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(rest.model.NamedBuffers()[i].second.ToVector<float>(),
                whole.model.NamedBuffers()[i].second.ToVector<float>());
    }
    RemoveTree(JoinPath(folder, kBuffersFile));
    EXPECT_THAT(test::MessageOf<InputError>([&] { Training(WithBiases(), 3, folder); }),
                HasSubstr("buffers.safetensors is missing: the model has state in addition to its "
                          "weights ('h.0.mlp.router.bias')"));
  }
}

TEST(MixtureTraining, FlopsAreThoseOfTheActiveParameters) {
  const Gpt model{Mixture()};
  // Two of the four experts of each of two layers, with two matrices of 16 x 12.
  const int64_t active = model.NumParameters() - 2 * 2 * 2 * 16 * 12;
  EXPECT_EQ(model.NumActiveParameters(), active);
  EXPECT_EQ(model.FlopsPerToken(8), 6.0 * static_cast<double>(active) + 6.0 * 2 * 16 * 8);
  const Gpt dense(SmallGpt(0));
  EXPECT_EQ(dense.NumActiveParameters(), dense.NumParameters());
}

}  // namespace
}  // namespace lockstep::models
