// The modules that an adapter's configuration names, against those that PEFT finds.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/gpt/lora_targets.h"
#include "models/gpt/peft/adapter_config.h"
#include "tests/message_of.h"

namespace lockstep::models {
namespace {
using test::MessageOf;
using testing::HasSubstr;

TEST(PeftConfigs, PatternsAndTargetsAreThoseOfPeft) {
  PeftConfig c{.rank = 4, .alpha = 8};
  c.rank_pattern = {{"q_proj", 2}, {"layers\\.1\\..*down_proj", 6}};
  EXPECT_EQ(c.RankOf("model.layers.0.self_attn.q_proj"), 2);
  EXPECT_EQ(c.RankOf("model.layers.0.self_attn.xq_proj"), 4);  // whole components
  EXPECT_EQ(c.RankOf("model.layers.1.mlp.down_proj"), 6);
  EXPECT_EQ(c.RankOf("model.layers.11.mlp.down_proj"), 4);
  EXPECT_EQ(c.ScaleOf("model.layers.1.mlp.down_proj"), 8.0 / 6);
  c.rank_stabilized = true;
  EXPECT_EQ(c.ScaleOf("model.layers.0.self_attn.q_proj"), 8 / std::sqrt(2.0));
  c.target_modules = {"q_proj", "mlp.up_proj"};
  EXPECT_TRUE(c.Targets("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(c.Targets("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(c.Targets("model.layers.0.mlp.xup_proj"));
  c.target_regex = ".*layers\\.[02]\\.self_attn\\.(q|v)_proj";
  EXPECT_TRUE(c.Targets("model.layers.2.self_attn.v_proj"));
  EXPECT_FALSE(c.Targets("model.layers.1.self_attn.v_proj"));
  EXPECT_FALSE(c.Targets("model.layers.0.self_attn.v_proj_more"));
}

// PEFT's get_pattern_key takes the first key that matches, in the order of the file.
TEST(PeftConfigs, OfPatternsThatOverlapTheFirstCounts) {
  const std::string q = "model.layers.0.self_attn.q_proj";
  for (const bool whole_first : {true, false}) {
    const std::string whole = R"("layers.0.self_attn.q_proj": 3)", last = R"("q_proj": 2)";
    const std::string both = whole_first ? whole + ", " + last : last + ", " + whole;
    const PeftConfig c = ParsePeftConfig(
        StrCat(R"({"r": 4, "rank_pattern": {)", both, R"(}, "alpha_pattern": {)", both, "}}"), "c");
    EXPECT_EQ(c.RankOf(q), whole_first ? 3 : 2);
    EXPECT_EQ(c.ScaleOf(q), 1.0);
    EXPECT_EQ(c.RankOf("model.layers.1.self_attn.q_proj"), 2);
    EXPECT_EQ(ToJson(ParsePeftConfig(ToJson(c), "again")), ToJson(c));
    EXPECT_EQ(ParsePeftConfig(ToJson(c), "again").RankOf(q), c.RankOf(q));
  }
}

// What PEFT found in a model of 12 layers (tests/peers/make_peft_names.py).
TEST(PeftConfigs, NameTheModulesThatPeftFinds) {
  const OrderedJson golden = OrderedJson::parse(ReadFile("tests/testdata/peft_names.json"));
  const auto modules = golden["modules"].get<std::vector<std::string>>();
  int refused = 0, adapters = 0, saved = 0;
  for (const OrderedJson& one : golden["cases"]) {
    const std::string text = one["config"].dump();
    SCOPED_TRACE(text);
    if (one["found"].is_null()) {
      EXPECT_THAT(MessageOf<InputError>([&] { ParsePeftConfig(text, "c.json"); }),
                  HasSubstr("c.json: \"layers_"));
      ++refused;
      continue;
    }
    for (const std::string& again : {text, ToJson(ParsePeftConfig(text, "c.json"))}) {
      const PeftConfig config = ParsePeftConfig(again, "c.json");
      std::map<size_t, std::pair<int64_t, double>> targets;
      std::vector<size_t> saves;
      for (size_t i = 0; i < modules.size(); ++i) {
        const bool linear = modules[i].ends_with("_proj");  // PEFT adapts heads, too, if asked
        if (linear && config.Targets(modules[i])) {
          targets[i] = {config.RankOf(modules[i]), config.ScaleOf(modules[i])};
        }
        if (config.Saves(modules[i])) saves.push_back(i);
      }
      std::map<size_t, std::pair<int64_t, double>> expected;
      for (const OrderedJson& target : one["found"]["targets"])
        expected[target[0]] = {target[1], target[2]};
      EXPECT_EQ(targets, expected);
      // PEFT looks at what is saved only if there are adapters.
      if (expected.empty()) continue;
      EXPECT_EQ(saves, one["found"]["saved"].get<std::vector<size_t>>());
      adapters += std::ssize(targets);
      saved += std::ssize(saves);
    }
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(adapters, 500);
  EXPECT_GT(saved, 50);
}

// The modules that lora.targets names.
std::vector<std::string> Targeted(const std::string& targets, const GptConfig& shape = {}) {
  GptConfig config = shape;
  config.n_layer = 3;
  config.n_head = 2;
  config.n_embd = 8;
  config.lora = {.rank = 2, .targets = targets};
  std::vector<std::string> found;
  for (const nn::LoraTarget& target : LoraTargets(Gpt(config))) found.push_back(target.path);
  return found;
}

TEST(LoraTargets, AreNamedAsPeftDoes) {
  EXPECT_EQ(Targeted("all-linear"), Targeted("all"));
  EXPECT_EQ(Targeted(R"(.*\.h\.[02]\.(attn|mlp)\.c_proj)"), Targeted("h.0*.c_proj,h.2*.c_proj"));
  EXPECT_EQ(Targeted(".*_proj"), Targeted("c_proj"));
  EXPECT_EQ(Targeted(R"((?!.*mlp).*\.c_\w+)"), Targeted("attn.*"));
  const auto error = [](const char* targets) {
    return MessageOf<Error>([&] { Targeted(targets); });
  };
  EXPECT_THAT(error(R"(c_(attn|proj))"), HasSubstr("names no matrix"));  // fullmatch
  EXPECT_THAT(error("c_(attn"), HasSubstr("names no matrix"));
}

TEST(LoraTargets, ExpertsAreNamedTogetherAndNotByAll) {
  using Names = std::vector<std::string>;
  GptConfig mixtral;
  mixtral.bias = false;
  mixtral.norm = NormKind::kRmsNorm;
  mixtral.activation = nn::MlpActivation::kSwiGlu;
  mixtral.position = Position::kRope;
  mixtral.mixture = {.n_expert = 3, .n_expert_used = 2, .n_inner = 6};
  mixtral.n_inner = 6;
  EXPECT_EQ(Targeted("all", mixtral), Targeted("self_attn.*", mixtral));
  EXPECT_EQ(Targeted("layers.1*.w3,layers.0.*.w2", mixtral),
            Names({"h.0.mlp.experts.c_proj", "h.1.mlp.experts.c_fc"}));
  EXPECT_EQ(Targeted("all,experts.*", mixtral).size(), 12u);
  EXPECT_EQ(Targeted(R"(.*\.1\..*experts\.\d+\.w1)", mixtral), Names({"h.1.mlp.experts.c_fc"}));
  EXPECT_THAT(MessageOf<Error>([&] { Targeted("experts.1.w1", mixtral); }),
              testing::AllOf(HasSubstr("all experts of a layer have adapters"),
                             HasSubstr("experts.1.w1 has one of rank 2"),
                             HasSubstr("expert 0 has none"), HasSubstr("without the number")));
}

}  // namespace
}  // namespace lockstep::models
