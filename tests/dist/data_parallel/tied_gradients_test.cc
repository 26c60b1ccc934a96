#include "dist/data_parallel/tied_gradients.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "core/autograd/engine.h"
#include "core/philox.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/shard/fully_shard.h"
#include "kernels/unary/unary.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/lm_head.h"
#include "tests/dist/in_process.h"

namespace lockstep::dist {
namespace {

using testing::ElementsAre;

constexpr int64_t kVocabulary = 11, kWidth = 8, kLength = 6;

// The loss of a language model, of which embedding and head are one weight or two equal ones.
class Language : public ModuleOf<Tensor(const Tensor& ids, const Tensor& targets)> {
 public:
  explicit Language(bool is_tied)
      : tied(is_tied),
        embed(this, "embed", std::make_shared<nn::Embedding>(kVocabulary, kWidth)),
        fc(this, "fc", std::make_shared<nn::Linear>(kWidth, kWidth)) {
    const auto weight = std::static_pointer_cast<nn::Embedding>(embed.module())->weight();
    head = std::make_unique<Child<nn::LmHeadLayer>>(
        this, "head",
        tied ? std::make_shared<nn::LmHead>(weight, 0)
             : std::make_shared<nn::LmHead>(kWidth, kVocabulary, nn::Normal(0, 1), 0));
    Materialize(kCpu, /*seed=*/3);
    if (!tied) Parameters().back()->value().Detach().CopyFrom(weight->value().Detach());
  }

  const bool tied;
  Child<Layer> embed, fc;
  std::unique_ptr<Child<nn::LmHeadLayer>> head;

 protected:
  Tensor Forward(const Tensor& ids, const Tensor& targets) override {
    return (*head)(ops::Relu(fc(embed(ids))), targets);
  }
};

Tensor IdsOf(int64_t micro_batch, uint64_t stream) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < 2 * kLength; ++i) {
    ids.push_back(static_cast<int32_t>(Philox(stream).At(micro_batch, i) % kVocabulary));
  }
  return Tensor::FromVector<int32_t>(ids, {2, kLength});
}

void BackwardOf(Language& model, int64_t micro_batch) {
  Backward(model(IdsOf(micro_batch, 1), IdsOf(micro_batch, 2)),
           Tensor::Full({}, 1.0 / 64, DType::kF32));
}

// The whole gradients of the step's micro-batches, by name.
std::map<std::string, std::vector<float>> StepBy(DataRanks& ranks, Language& model) {
  for (const int64_t micro : ranks.micro_order()) {
    ranks.BeginMicroBatch(micro == ranks.micro_order().back());
    BackwardOf(model, micro);
  }
  std::map<std::string, std::vector<float>> gradients;
  for (const auto& p : model.Parameters()) {
    gradients[p->name()] = p->WholeOf(p->grad().Detach()).ToVector<float>();
  }
  model.ZeroGrad();
  return gradients;
}

// What the two gradients of an untied model give, each summed in the fixed order, and then added.
std::map<std::string, std::vector<float>> Expected(int64_t micro_batches) {
  Language model(/*is_tied=*/false);
  DataParallel alone(nullptr, model,
                     {.sum = GradientSum::kOrdered, .micro_batches = micro_batches});
  auto gradients = StepBy(alone, model);
  for (size_t i = 0; i < gradients["embed.weight"].size(); ++i) {
    gradients["embed.weight"][i] += gradients["head.weight"][i];
  }
  gradients.erase("head.weight");
  return gradients;
}

TEST(TiedGradients, AreThoseOfEachUseAddedLast) {
  for (const int64_t micro_batches : {1, 2, 3, 6, 8}) {
    const auto expected = Expected(micro_batches);
    for (const int ranks : {1, 2, 3}) {
      if (ranks > micro_batches) continue;
      for (const bool shards : {false, true}) {
        // Shards need a power of two of ranks with equally many micro-batches each.
        if (shards && (ranks == 3 || micro_batches % ranks != 0)) continue;
        RunInProcess(ranks, [&](ProcessGroup& group) {
          Language model(/*is_tied=*/true);
          std::unique_ptr<DataRanks> parallel;
          if (shards) {
            parallel = std::make_unique<FullyShard>(
                &group, model,
                ShardOptions{.sum = GradientSum::kOrdered,
                             .micro_batches = micro_batches,
                             .unit = [](const Module&) { return false; }});
          } else {
            parallel = std::make_unique<DataParallel>(
                &group, model,
                ReducerOptions{.sum = GradientSum::kOrdered, .micro_batches = micro_batches});
          }
          for (int step = 0; step < 2; ++step) {
            EXPECT_EQ(StepBy(*parallel, model), expected)
                << micro_batches << " micro-batches on " << ranks << (shards ? " shards" : "");
          }
        });
      }
    }
  }
}

// The reference in f64, of all micro-batches in one graph each.
TEST(TiedGradients, AreRight) {
  Language model(/*is_tied=*/true), exact(/*is_tied=*/true);
  exact.Materialize(kCpu, 3, DType::kF64);
  DataParallel alone(nullptr, model, {.sum = GradientSum::kOrdered, .micro_batches = 4});
  const auto gradients = StepBy(alone, model);
  for (int64_t m = 0; m < 4; ++m) {
    Backward(exact(IdsOf(m, 1), IdsOf(m, 2)), Tensor::Full({}, 1.0 / 64, DType::kF64));
  }
  for (const auto& p : exact.Parameters()) {
    const std::vector<double> reference = p->grad().ToVector<double>();
    for (size_t i = 0; i < reference.size(); ++i) {
      EXPECT_NEAR(gradients.at(p->name())[i], reference[i], 1e-6) << p->name();
    }
  }
}

TEST(TiedGradients, AreOneAgainAfterwards) {
  Language model(/*is_tied=*/true);
  const auto plain = [&] {
    BackwardOf(model, 0);
    const auto gradient = model.Parameters()[0]->grad().ToVector<float>();
    model.ZeroGrad();
    return gradient;
  };
  const auto before = plain();
  {
    DataParallel alone(nullptr, model, {.sum = GradientSum::kOrdered, .micro_batches = 2});
    EXPECT_NE(StepBy(alone, model).at("embed.weight"), before);
    EXPECT_EQ(model.Parameters().size(), 3u) << "for optimizers, norms and checkpoints";
  }
  EXPECT_EQ(plain(), before);
}

// What a failed step has left counts in no other.
TEST(TiedGradients, OfAFailedStepAreForgotten) {
  Language model(/*is_tied=*/true);
  DataParallel alone(nullptr, model, {.sum = GradientSum::kOrdered, .micro_batches = 2});
  alone.BeginMicroBatch(/*last=*/false);
  BackwardOf(model, 5);
  alone.BeginMicroBatch(/*last=*/false);  // one too many
  EXPECT_THROW(BackwardOf(model, 6), ArgumentError);
  model.ZeroGrad();
  EXPECT_EQ(StepBy(alone, model), Expected(2));
}

TEST(TiedGradients, OfAFrozenWeightAreNone) {
  Language model(/*is_tied=*/true);
  model.Parameters()[0]->SetTrainable(false);
  DataParallel alone(nullptr, model, {.sum = GradientSum::kOrdered, .micro_batches = 2});
  alone.BeginMicroBatch(false);
  BackwardOf(model, 0);
  alone.BeginMicroBatch(true);
  BackwardOf(model, 1);
  EXPECT_FALSE(model.Parameters()[0]->grad().defined());
  EXPECT_TRUE(model.Parameters()[1]->grad().defined());
}

// Of a part that has the head alone, as a stage of a pipeline, the weight itself gets none.
TEST(TiedGradients, AreSummedWhereTheyAreMade) {
  Language model(/*is_tied=*/true);
  const auto names = [](Module& module) {
    std::vector<std::string> all;
    for (const auto& p : GradientParameters(module)) all.push_back(p->name());
    return all;
  };
  EXPECT_THAT(names(model), ElementsAre("embed.weight", "fc.weight", "fc.bias"));
  const TiedGradients apart(model);
  EXPECT_THAT(names(model), ElementsAre("embed.weight", "fc.weight", "fc.bias", "head.weight"));
  EXPECT_THAT(names(*model.embed.module()), ElementsAre("embed.weight"));
  EXPECT_THAT(names(*model.head->module()), ElementsAre("head.weight"));
  EXPECT_EQ(TiedGradients(*model.head->module()).uses().size(), 0u) << "they are apart already";
}

}  // namespace
}  // namespace lockstep::dist
