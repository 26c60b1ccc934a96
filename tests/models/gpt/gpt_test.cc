// A GPT in parts: a block that is wrapped, replaced, recomputed or cut out keeps the fused path and
// its bits, every module's hooks run, and no parameter is read outside of its own module.
#include "models/gpt/gpt.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "nn/init.h"
#include "nn/recompute.h"
#include "nn/tokens.h"

namespace lockstep::models {
namespace {

using Names = std::vector<std::string>;

GptConfig Gpt2() {
  return {
      .vocab_size = 13, .block_size = 8, .n_layer = 3, .n_head = 2, .n_embd = 16, .dropout = 0.2};
}
GptConfig Llama() {
  GptConfig config = Gpt2();
  config.dropout = 0;
  config.tie_embeddings = false;
  config.n_kv_head = 1;
  config.norm = NormKind::kRmsNorm;
  config.activation = nn::MlpActivation::kSwiGlu;
  config.position = Position::kRope;
  return config;
}

// With the ingredients of modern recipes, and branches that leave a bias and a dropout open.
GptConfig Modern() {
  GptConfig config = Llama();
  config.dropout = 0.2;
  config.bias = true;
  config.qk_norm = nn::QkNorm::kHead;
  config.norm_weight = false;
  config.activation = nn::MlpActivation::kRelu2;
  config.embed_norm = true;
  config.embed_mix = true;
  config.value_embed = true;
  return config;
}

// Random numbers even where initialisers give 0 or 1; the same for the same names.
void Randomize(const Module& module) {
  for (const auto& p : module.Parameters()) {
    const std::span<float> values(p->value().data<float>(),
                                  static_cast<size_t>(p->value().numel()));
    nn::Normal(0, 0.3)(values, 0, 5, p->name());
  }
}

struct Outcome {
  std::vector<float> loss;
  std::map<std::string, std::vector<float>> gradients;
  Names nodes;  // of the graph
  bool operator==(const Outcome&) const = default;
};

class GptParts : public testing::TestWithParam<GptConfig> {
 protected:
  GptParts() : model_(GetParam()) {
    model_.Materialize(kCpu, 1);
    Randomize(model_);
    std::vector<int32_t> ids, targets;
    for (int32_t i = 0; i < 14; ++i) {
      ids.push_back(i * i % 13);
      targets.push_back((i + 3) * 5 % 13);
    }
    ids_ = Tensor::FromVector(ids, {2, 7});
    targets_ = Tensor::FromVector(targets, {2, 7});
  }

  // Backward, with the names of its nodes.
  static void BackwardOf(std::span<const Tensor> roots, std::span<const Tensor> gradients,
                         Names& nodes) {
    struct Planned : BackwardObserver {
      explicit Planned(Names& names) : names(names) {}
      bool awaits_leaves() const override { return false; }
      void OnBegin(const BackwardPlan& plan) override {
        for (const auto& node : plan.nodes) names.push_back(node->name());
      }
      Names& names;
    } planned(nodes);
    Backward(roots, gradients, {.observers = {&planned}});
  }
  static void BackwardOf(const Tensor& loss, Names& nodes) {
    const Tensor one;
    BackwardOf({&loss, 1}, {&one, 1}, nodes);
  }
  static Outcome OutcomeOf(Gpt& model, const Tensor& loss, Names nodes) {
    Outcome outcome{.loss = loss.ToVector<float>(), .nodes = std::move(nodes)};
    for (const auto& [name, p] : model.NamedParameters()) {
      outcome.gradients[name] = p->grad().ToVector<float>();
    }
    model.ZeroGrad();
    return outcome;
  }
  Outcome Train(Gpt& model) {
    state_.SetFirstSample(0);
    const Tensor loss = model.Loss(ids_, targets_);
    Names nodes;
    BackwardOf(loss, nodes);
    return OutcomeOf(model, loss, std::move(nodes));
  }
  Outcome Train() { return Train(model_); }

  StepState state_{kCpu, 7};
  const TrainingScope training_{state_};
  Gpt model_;
  Tensor ids_, targets_;
};

// ---- Blocks. ----

struct Wrapper : nn::Block {
  explicit Wrapper(std::shared_ptr<Module> block) : base(this, "", std::move(block)) {}
  nn::ResidualStream Forward(nn::ResidualStream stream) override {
    ++calls;
    return base(std::move(stream));
  }
  Child<nn::Block> base;  // without a name, so that parameters keep theirs
  int calls = 0;
};

TEST_P(GptParts, AWrappedBlock) {
  const Outcome plain = Train();
  const auto wrapper = std::make_shared<Wrapper>(model_.blocks()[1].module());
  model_.ReplaceChild("h.1", wrapper);
  EXPECT_EQ(Train(), plain);
  EXPECT_EQ(wrapper->calls, 1);
}

TEST_P(GptParts, AReplacedBlock) {
  const Outcome plain = Train();
  model_.ReplaceChild("h.1", Gpt(GetParam()).blocks()[1].module());
  model_.blocks()[1].module()->Materialize(kCpu, 1);
  Randomize(model_);
  EXPECT_EQ(Train(), plain);
}

TEST_P(GptParts, APlainLayerInPlaceOfABlock) {
  if (GetParam().embed_mix) GTEST_SKIP() << "a tensor does not say what its stream began with";
  struct PlainLayer : Layer {
    explicit PlainLayer(std::shared_ptr<Module> block) : base(this, "", std::move(block)) {}
    Tensor Forward(const Tensor& x) override { return Complete(base(x)); }
    Child<nn::Block> base;
  };
  const Outcome plain = Train();
  const auto layer = std::make_shared<PlainLayer>(model_.blocks()[1].module());
  model_.ReplaceChild("h.1", layer);
  EXPECT_EQ(model_.blocks()[1].module(), layer) << "not the adapter";
  int hooks = 0;
  layer->AddPostForwardHook([&](Module&) { ++hooks; });
  layer->AddPostBackwardHook([&](Module&) { ++hooks; });
  const Outcome outcome = Train();
  EXPECT_EQ(hooks, 2);
  EXPECT_NEAR(outcome.loss[0], plain.loss[0], 1e-5 * plain.loss[0]);
  ASSERT_EQ(outcome.gradients.size(), plain.gradients.size());
  for (const auto& [name, want] : plain.gradients) {
    const std::vector<float>& got = outcome.gradients.at(name);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-4 * (1 + std::abs(want[i]))) << name;
    }
  }
}

Tensor LeafOf(const Tensor& t) { return t.defined() ? t.Detach().SetRequiresGrad() : Tensor(); }

// The same stream at the start of a new graph.
nn::ResidualStream Cut(nn::ResidualStream stream) {
  for (Tensor* t : {&stream.x, &stream.open.value, &stream.open.bias, &stream.x0}) *t = LeafOf(*t);
  return stream;
}

// All that is the same, however much is recomputed.
TEST_P(GptParts, Recomputed) {
  const Outcome plain = Train();
  std::vector<std::string> choices = {"block", "attention", "mlp"};
  choices.push_back(GetParam().norm == NormKind::kRmsNorm ? "swiglu,rms_norm" : "gelu,layer_norm");
  for (const std::string& text : choices) {
    for (const int64_t layers : {-1, 2}) {
      GptConfig config = GetParam();
      config.recompute = ParseRecompute(text);
      config.recompute.layers = layers;
      Gpt model(config);
      model.Materialize(kCpu, 1);
      Randomize(model);
      EXPECT_EQ(Train(model), plain) << text << " " << layers;
    }
  }
}

// The names that the option takes are names of operations.
TEST_P(GptParts, EveryOperationCanBeNamed) {
  GptConfig config = GetParam();
  config.recompute = ParseRecompute(RecomputableOps());
  EXPECT_NO_THROW(Gpt{config});
}

TEST_P(GptParts, ABlockThatIsRecomputed) {
  const Outcome plain = Train();
  const auto wrapper = std::make_shared<Wrapper>(model_.blocks()[1].module());
  model_.ReplaceChild("h.1", nn::Recompute(wrapper));
  EXPECT_EQ(Train(), plain);
  EXPECT_EQ(wrapper->calls, 2);
}

// Like a pipeline: two graphs, with the gradients at the cut passed by hand.
TEST_P(GptParts, TwoHalves) {
  const Outcome plain = Train();
  for (int64_t cut_at = 0; cut_at <= model_.blocks().size(); ++cut_at) {
    state_.SetFirstSample(0);
    const nn::TokenScope tokens(ids_);
    nn::ResidualStream stream = model_.Embedded(ids_);
    int64_t i = 0;
    while (i < cut_at) stream = model_.blocks()[i++](std::move(stream));
    const nn::ResidualStream cut = Cut(stream);
    nn::ResidualStream rest = cut;
    while (i < model_.blocks().size()) rest = model_.blocks()[i++](std::move(rest));
    const Tensor loss = model_.head()(std::move(rest), targets_);

    std::vector<Tensor> ends, gradients;
    Names nodes;
    BackwardOf(loss, nodes);
    for (const auto& [end, start] : {std::pair(stream.x, cut.x),
                                     {stream.open.value, cut.open.value},
                                     {stream.open.bias, cut.open.bias},
                                     {stream.x0, cut.x0}}) {
      if (!end.defined() || !start.grad().defined()) continue;  // no block follows that mixes
      ends.push_back(end);
      gradients.push_back(start.grad());
    }
    BackwardOf(ends, gradients, nodes);
    EXPECT_EQ(OutcomeOf(model_, loss, std::move(nodes)), plain) << "cut before block " << cut_at;
  }
}

// ---- Hooks. ----

class GptHooks : public GptParts {};

GptConfig WithRecomputedBlocks(GptConfig config) {
  config.recompute = {.part = RecomputeChoice::Part::kBlock};
  return config;
}

// What a block reads when it is recomputed has been gathered by its own hooks.
TEST_P(GptHooks, ABlockReadsItsWeightsBetweenItsHooks) {
  const Outcome plain = Train();
  for (int64_t i = 0; i < model_.blocks().size(); ++i) {
    const auto block = model_.blocks()[i].module();
    for (const auto& p : block->Parameters()) {
      const auto set = [p](const std::vector<float>& values) {
        return [p, values](Module&) { std::ranges::copy(values, p->value().data<float>()); };
      };
      const std::vector<float> values = p->value().ToVector<float>();
      const auto gather = set(values), release = set(std::vector<float>(values.size(), NAN));
      block->AddPreForwardHook(gather);
      block->AddPostForwardHook(release);
      block->AddPreBackwardHook(gather);
      block->AddPostBackwardHook(release);
      release(*block);
    }
  }
  EXPECT_EQ(Train(), plain);
}

TEST_P(GptHooks, EveryModulesHooksRunOncePerPass) {
  std::map<std::string, int> runs;
  Names want;
  for (const auto& [path, module] : model_.NamedModules()) {
    // Three modules have the empty path: the model, its embedding and its head.
    const std::string name = StrCat(want.size() / 4, " ", path);
    const auto count = [&](const std::string& when) {
      want.push_back(name + when);
      return [&runs, at = want.back()](Module&) { ++runs[at]; };
    };
    module->AddPreForwardHook(count(" pre-forward"));
    module->AddPostForwardHook(count(" post-forward"));
    module->AddPreBackwardHook(count(" pre-backward"));
    module->AddPostBackwardHook(count(" post-backward"));
  }
  const bool recomputed = GetParam().recompute.part != RecomputeChoice::Part::kNone;
  EXPECT_EQ(want.size() / 4,
            3 * (recomputed ? 12 : 11) + (GetParam().position == Position::kLearned ? 8 : 7));
  for (int pass = 1; pass <= 2; ++pass) {
    Train();
    for (const std::string& name : want) EXPECT_EQ(runs[name], pass) << name;
    EXPECT_EQ(runs.size(), want.size());
  }
}

// A parameter has its values only while its own module runs, as if gathered before and released
// after it.
TEST_P(GptParts, NoParameterIsReadOutsideOfItsModule) {
  const Outcome plain = Train();
  int watched = 0;
  for (const auto& [path, module] : model_.NamedModules()) {
    for (const auto& [name, p] : module->NamedParameters()) {
      if (name.find('.') != std::string::npos) continue;  // belongs to a child
      ++watched;
      // Through the pointer, so that the version counter does not see it.
      const auto set = [p = p](const std::vector<float>& values) {
        return [p, values](Module&) { std::ranges::copy(values, p->value().data<float>()); };
      };
      const std::vector<float> values = p->value().ToVector<float>();
      const auto gather = set(values), release = set(std::vector<float>(values.size(), NAN));
      module->AddPreForwardHook(gather);
      module->AddPostForwardHook(release);
      module->AddPreBackwardHook(gather);
      module->AddPostBackwardHook(release);
    }
  }
  EXPECT_EQ(watched, std::ssize(model_.Parameters()) + (GetParam().tie_embeddings ? 1 : 0));
  for (const auto& p : model_.Parameters()) {
    std::ranges::fill(std::span(p->value().data<float>(), p->value().numel()), NAN);
  }
  EXPECT_EQ(Train(), plain);
}

// ---- A tied head. ----

TEST(GptTest, ATiedHeadSharesTheParameterUnderItsFirstName) {
  GptConfig config = Gpt2();
  Gpt tied(config);
  config.tie_embeddings = false;
  Gpt untied(config);
  const auto last = [](const Gpt& model) { return model.NamedParameters().back().first; };
  EXPECT_EQ(last(tied), "ln_f.bias");
  EXPECT_EQ(last(untied), "lm_head.weight");
  EXPECT_EQ(untied.NumParameters() - tied.NumParameters(), 13 * 16);
  tied.Materialize(kCpu, 1);
  EXPECT_EQ(tied.NamedParameters().front().second->name(), "wte.weight");
  EXPECT_EQ(tied.head()->Parameters().back(), tied.Parameters().front());
}

GptConfig Untied() {
  GptConfig config = Gpt2();
  config.tie_embeddings = false;
  return config;
}

std::string NameOf(const testing::TestParamInfo<GptConfig>& instance) {
  return instance.param.embed_mix                     ? "Modern"
         : instance.param.position == Position::kRope ? "Llama"
         : instance.param.tie_embeddings              ? "Gpt2"
                                                      : "Gpt2Untied";
}

INSTANTIATE_TEST_SUITE_P(Models, GptParts, testing::Values(Gpt2(), Untied(), Llama(), Modern()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Models, GptHooks, testing::Values(Gpt2(), Llama()), NameOf);
INSTANTIATE_TEST_SUITE_P(RecomputedModels, GptHooks,
                         testing::Values(WithRecomputedBlocks(Gpt2()),
                                         WithRecomputedBlocks(Llama())),
                         NameOf);

}  // namespace
}  // namespace lockstep::models
