// Preference tuning of models with adapters: against TRL's formulas on PEFT's models
// (tests/peers/make_dpo_golden.py), its laws, and training until the chosen answers are preferred.
#include "models/preference/preference_objective.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "core/autograd/engine.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "dist/data_parallel/data_parallel.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/gpt/peft/write_adapter.h"
#include "models/train/step/trainer.h"
#include "nn/lora/lora.h"
#include "optim/adamw.h"
#include "tests/dist/in_process.h"
#include "tests/message_of.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// ---- Against TRL. ----

class DpoParity : public testing::TestWithParam<const char*> {};

std::vector<float> Values(const Tensor& x) { return x.Contiguous().ToVector<float>(); }

TEST_P(DpoParity, LossesRewardsAndGradientsOfAdapters) {
  const std::string base = StrCat("tests/testdata/", GetParam(), "_parity");
  const SafetensorsFile golden = SafetensorsFile::Open(
      StrCat("tests/models/preference/testdata/dpo_", GetParam(), ".safetensors"));
  const PeftAdapter adapter = PeftAdapter::Open(StrCat("tests/testdata/", GetParam(), "_peft"));
  GptConfig config = ReadHfConfig(base);
  for (const int64_t loss_chunk : {0, 5}) {
    config.loss_chunk = loss_chunk;
    Gpt model(config);
    adapter.AddTo(model);
    model.Materialize(kCpu, 0);
    LoadHfWeights(model, base);
    adapter.LoadInto(model);
    const Tensor ids = golden.Get("ids").ToTensor();
    data::Batch rows{.rows = ids.dim(0),
                     .cols = ids.dim(1),
                     .inputs = ids.ToVector<int32_t>(),
                     .targets = golden.Get("labels").ToTensor().ToVector<int32_t>()};
    std::ranges::replace(rows.targets, -100, data::kIgnoreIndex);
    const Json variants = ParseJson(golden.metadata().at("variants"), "variants");
    ASSERT_EQ(variants.size(), 3u);
    for (const auto& [name, j] : variants.items()) {
      SCOPED_TRACE(StrCat(name, ", chunks of ", loss_chunk));
      const PreferenceObjective objective(
          model, {.loss = j.at("loss") == "ipo" ? DpoLossKind::kIpo : DpoLossKind::kSigmoid,
                  .beta = j.at("beta"),
                  .label_smoothing = j.at("label_smoothing")});
      const auto mean = [&](const char* what) {
        const std::vector<float> all = Values(golden.Get(StrCat(name, ".", what)).ToTensor());
        double sum = 0;
        for (const float x : all) sum += x;
        return sum / static_cast<double>(all.size());
      };
      const LossSums sums = objective(model, rows, kCpu);
      const PreferenceMetrics metrics =
          PreferenceObjective::ToMetrics(sums.measures.To(DType::kF64).ToVector<double>());
      EXPECT_NEAR(metrics.loss, mean("losses"), 2e-5 * std::max(1.0, mean("losses")));
      EXPECT_NEAR(metrics.chosen, mean("chosen"), 2e-5);
      EXPECT_NEAR(metrics.rejected, mean("rejected"), 2e-5);
      Backward(sums.loss, Tensor::Full({}, 2.0 / static_cast<double>(rows.rows), DType::kF32));
      const auto gradients = ToPeftTensors(
          model, [](const std::string&, const Parameter& p) { return p.grad().Detach(); });
      EXPECT_EQ(variants.size() * (gradients.size() + 3) + 2, golden.entries().size());
      for (const SafetensorsItem& item : gradients) {
        const std::vector<float> ours = Values(item.produce());
        const std::vector<float> theirs =
            Values(golden.Get(StrCat(name, ".", item.name)).ToTensor());
        ASSERT_EQ(ours.size(), theirs.size()) << item.name;
        double squares = 0, error = 0;
        for (size_t i = 0; i < ours.size(); ++i) {
          squares += double{theirs[i]} * theirs[i];
          error = std::max(error, std::abs(double{ours[i]} - theirs[i]));
        }
        EXPECT_GT(squares, 0) << item.name;
        EXPECT_LT(error, 1e-4 * std::sqrt(squares)) << item.name;
      }
      model.ZeroGrad();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, DpoParity, testing::Values("qwen2", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

// ---- Training. ----

constexpr int64_t kWidth = 16, kVocabulary = 24, kPrompt = 6, kAnswer = 5;

// Pairs whose chosen answers ascend from the last token of a random prompt, and whose rejected ones
// descend; `equal`: both ascend. Rows of different pairs differ in length. Numbers from `first` on.
class Pairs : public data::TokenSource {
 public:
  explicit Pairs(int64_t pairs, int64_t first = 0, bool equal = false) {
    for (int64_t pair = first; pair < first + pairs; ++pair) {
      for (const int step : {1, equal ? 1 : -1}) Append(pair, step);
    }
    ids_.push_back(0);
    learnt_.push_back(0);
  }
  int64_t size() const override { return std::ssize(ids_); }
  bool has_loss_mask() const override { return true; }

 private:
  void Append(int64_t pair, int step) {
    uint64_t random = static_cast<uint64_t>(pair) + 1;
    int64_t last = 0;
    for (int64_t i = 0; i < kWidth; ++i) {
      const int64_t answer = i - kPrompt;
      const bool learnt = answer >= 0 && answer < kAnswer + pair % 4;
      random = random * 6364136223846793005 + 1442695040888963407;
      if (answer < 0) last = static_cast<int64_t>((random >> 33) % kVocabulary);
      if (learnt) last = (last + step + kVocabulary) % kVocabulary;
      ids_.push_back(answer < 0 || learnt ? static_cast<int32_t>(last) : 0);
      learnt_.push_back(learnt ? 1 : 0);
    }
  }
  void DoRead(int64_t offset, std::span<int32_t> out) const override {
    std::copy_n(ids_.begin() + offset, out.size(), out.begin());
  }
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override {
    std::copy_n(learnt_.begin() + offset, out.size(), out.begin());
  }
  std::vector<int32_t> ids_, learnt_;
};

GptConfig SmallModel(int64_t rank = 4) {
  return {.vocab_size = kVocabulary,
          .block_size = kWidth,
          .n_layer = 2,
          .n_head = 2,
          .n_embd = 32,
          .init_std = 0.1,
          .loss_chunk = 20,
          .lora = {.rank = rank, .alpha = 16}};
}

struct TuningOptions {
  std::shared_ptr<const data::TokenSource> pairs = std::make_shared<Pairs>(40);
  DpoOptions dpo = {};
  int64_t batch_size = 4, micro_batches = 2;
  int64_t first_step = 0;
  double lr = 1e-2;
  dist::ReducerOptions reducer = {};
};

// A model, and all that trains it; on several ranks, one of them.
struct Tuning {
  explicit Tuning(const TuningOptions& o = {}, dist::ProcessGroup* group = nullptr)
      : model(SmallModel()), objective(Made(model), o.dpo) {
    for (const auto& p : model.Parameters()) {
      if (p->trainable()) p->leaf().SetDType(DType::kF32);
    }
    dist::ReducerOptions reducer = o.reducer;
    reducer.micro_batches = o.micro_batches;
    parallel = std::make_unique<dist::DataParallel>(group, model, reducer);
    ranks.emplace(*parallel);
    optimizer = std::make_unique<optim::AdamW>(model.Parameters(), optim::AdamWOptions{});
    loader = std::make_unique<data::Loader>(
        o.pairs, data::Sampler(data::Order::kShuffled, 5, o.pairs->size(), 2 * kWidth),
        data::BatchLayout{.batch_size = o.batch_size,
                          .micro_batches = o.micro_batches,
                          .micro_order = parallel->reducer().micro_order()},
        o.first_step);
    trainer = std::make_unique<Trainer>(
        model, *optimizer, optim::LrSchedule({.lr = o.lr, .warmup = 2, .decay_steps = 100}),
        *loader,
        TrainerOptions{.first_step = o.first_step,
                       .micro_batches = o.micro_batches,
                       .objective = &objective,
                       .ranks = &*ranks});
  }
  static Gpt& Made(Gpt& model) {
    model.Materialize(kCpu, 3);
    return model;
  }
  PreferenceMetrics Evaluate(std::shared_ptr<const data::TokenSource> pairs) {
    PreferenceMetrics metrics;
    const data::EvalBatches batches(std::move(pairs), 2 * kWidth, 3);
    EXPECT_EQ(trainer->Evaluate(batches, &metrics), metrics.loss);
    return metrics;
  }
  std::vector<float> Adapters() const {
    std::vector<float> all;
    for (const auto& [name, p] : nn::LoraParameters(model)) {
      const std::vector<float> values = p->value().ToVector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  Gpt model;
  PreferenceObjective objective;
  std::unique_ptr<dist::DataParallel> parallel;
  std::optional<SampleRanks> ranks;
  std::unique_ptr<optim::AdamW> optimizer;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<Trainer> trainer;
};

// B is zero at first, so the policy is its reference to the bit.
TEST(PreferenceTuning, BeginsWithoutAPreference) {
  Tuning run;
  const StepMetrics first = run.trainer->Step();
  ASSERT_TRUE(first.preference);
  EXPECT_EQ(first.loss, static_cast<double>(std::numbers::ln2_v<float>));
  EXPECT_EQ(first.preference->margin(), 0);
  EXPECT_EQ(first.preference->chosen, 0);
  EXPECT_EQ(first.preference->accuracy, 0);
  EXPECT_GT(first.grad_norm, 0);
  EXPECT_NE(run.trainer->Step().preference->margin(), 0);
}

// Held-out pairs follow the same rule; the last batch of the evaluation is not full.
TEST(PreferenceTuning, LearnsToPreferTheChosenAnswers) {
  Tuning run;
  const auto held_out = std::make_shared<Pairs>(31, /*first=*/40);
  const double before = run.Evaluate(held_out).loss;
  EXPECT_NEAR(before, std::numbers::ln2, 1e-7);
  StepMetrics last;
  for (int i = 0; i < 60; ++i) last = run.trainer->Step();
  EXPECT_GT(last.preference->accuracy, 0.9);
  EXPECT_GT(last.preference->margin(), 1);
  EXPECT_LT(last.loss, 0.4);
  EXPECT_EQ(last.loss, last.preference->loss);
  const PreferenceMetrics after = run.Evaluate(held_out);
  EXPECT_GT(after.accuracy, 0.9);
  EXPECT_LT(after.loss, 0.7 * before);
}

// Whatever the adapters are, equal answers have the loss log 2, and gradients that cancel.
TEST(PreferenceTuning, EqualAnswersTeachNothing) {
  Tuning run;
  for (int i = 0; i < 5; ++i) run.trainer->Step();
  const auto norm = [&](bool equal) {
    const Pairs pairs(2, /*first=*/0, equal);
    data::Batch batch;
    const int64_t starts[] = {0, 2 * kWidth};
    data::ReadBatch(pairs, starts, 2 * kWidth, &batch);
    const auto sums = run.objective(run.model, SplitPairs(batch), kCpu);
    if (equal) {
      EXPECT_EQ(sums.loss.Item(), 2 * std::numbers::ln2_v<float>);
    }
    Backward(sums.loss, {}, {.evaluation = true});
    double squares = 0;
    for (const auto& [name, p] : nn::LoraParameters(run.model)) {
      for (const float g : p->grad().ToVector<float>()) squares += double{g} * g;
    }
    run.model.ZeroGrad();
    return std::sqrt(squares);
  };
  EXPECT_LT(norm(true), 1e-6 * norm(false));
}

// The mean is over the pairs of the step, whatever the micro-batches, and whatever rows are long.
TEST(PreferenceTuning, AccumulationIsAMeanOverPairs) {
  std::vector<StepMetrics> metrics;
  for (const int64_t micro_batches : {1, 2, 4, 8}) {
    Tuning run({.batch_size = 8 / micro_batches, .micro_batches = micro_batches});
    run.trainer->Step();
    metrics.push_back(run.trainer->Step());
  }
  for (const StepMetrics& m : metrics) {
    EXPECT_NEAR(m.loss, metrics[0].loss, 1e-6);
    EXPECT_NEAR(m.grad_norm, metrics[0].grad_norm, 1e-5 * metrics[0].grad_norm);
    EXPECT_NEAR(m.preference->margin(), metrics[0].preference->margin(), 1e-6);
    EXPECT_EQ(m.preference->accuracy, metrics[0].preference->accuracy);
  }
}

TEST(PreferenceTuning, RanksHaveTheBitsOfOneProcess) {
  const auto train = [](dist::ProcessGroup* group) {
    Tuning run({.micro_batches = 4, .reducer = {.sum = dist::GradientSum::kOrdered}}, group);
    std::vector<double> numbers;
    for (int i = 0; i < 3; ++i) {
      const StepMetrics m = run.trainer->Step();
      numbers.insert(numbers.end(), {m.loss, m.grad_norm, m.preference->chosen,
                                     m.preference->rejected, m.preference->accuracy});
    }
    const PreferenceMetrics val = run.Evaluate(std::make_shared<Pairs>(10));
    numbers.insert(numbers.end(), {val.loss, val.chosen, val.rejected, val.accuracy});
    return std::pair(numbers, run.Adapters());
  };
  const auto alone = train(nullptr);
  for (const int ranks : {2, 4}) {
    dist::RunInProcess(ranks, [&](dist::ProcessGroup& group) { EXPECT_EQ(train(&group), alone); });
  }
}

// Frozen weights stay as they were, and have no gradients.
TEST(PreferenceTuning, TrainsAdaptersOnly) {
  Tuning run, fresh;
  for (int i = 0; i < 3; ++i) run.trainer->Step();
  for (size_t i = 0; i < run.model.Parameters().size(); ++i) {
    const auto p = run.model.Parameters()[i];
    const bool same =
        p->value().ToVector<float>() == fresh.model.Parameters()[i]->value().ToVector<float>();
    EXPECT_EQ(same, !p->trainable()) << p->name();
  }
}

TEST(PreferenceTuning, RefusesWhatHasNoReference) {
  Gpt plain(SmallModel(/*rank=*/0));
  plain.Materialize(kCpu, 1);
  const auto refused = [](Gpt& model, const DpoOptions& options = {}) {
    return MessageOf<ArgumentError>([&] { PreferenceObjective(model, options); });
  };
  EXPECT_THAT(refused(plain), AllOf(HasSubstr("this model has none"), HasSubstr("nn::AddLora")));
  Gpt model(SmallModel());
  model.Materialize(kCpu, 1);
  EXPECT_THAT(refused(model, {.beta = -1}), HasSubstr("beta must be above 0"));
  for (const auto& p : model.Parameters()) {
    if (p->name() == "wte.weight") p->SetTrainable(true);
  }
  EXPECT_THAT(refused(model), HasSubstr("'wte.weight' is trained too"));
}

// ---- SplitPairs. ----

TEST(SplitPairs, CutsColumnsThatOnlyFillRowsUp) {
  data::Batch windows{.step = 4, .micro_batch = 1, .rows = 1, .cols = 40, .num_targets = 2};
  windows.inputs.resize(40);
  for (int i = 0; i < 40; ++i) windows.inputs[i] = i;
  windows.targets.assign(40, data::kIgnoreIndex);
  windows.targets[2] = 3;
  windows.targets[20 + 9] = 30;
  const data::Batch rows = SplitPairs(windows);
  EXPECT_EQ(rows.rows, 2);
  EXPECT_EQ(rows.cols, 16);
  EXPECT_EQ(rows.step, 4);
  EXPECT_EQ(rows.micro_batch, 1);
  EXPECT_EQ(rows.inputs[16], 20);
  EXPECT_EQ(rows.targets[2], 3);
  EXPECT_EQ(rows.targets[16 + 9], 30);
  windows.targets[39] = 1;
  EXPECT_EQ(SplitPairs(windows).cols, 20);
}

}  // namespace
}  // namespace lockstep::models
