#include "models/hf_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "core/safetensors.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

constexpr GptConfig kSmall{
    .vocab_size = 11, .block_size = 6, .n_layer = 2, .n_head = 2, .n_embd = 8};

std::string Folder(const std::string& name) {
  const std::string path = JoinPath(testing::TempDir(), name);
  MakeDirectories(path);
  return path;
}

void Save(Gpt& model, const std::string& folder) {
  FileWriter out(folder + "/model.safetensors");
  WriteSafetensors(out, ToHfTensors(model));
  out.Close();
  WriteFileAtomically(folder + "/config.json", ToHfConfig(model.config()));
}

std::string ErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

class HfRoundTrip : public testing::TestWithParam<GptConfig> {};

TEST_P(HfRoundTrip, GivesTheSameModel) {
  const std::string folder = Folder("round_trip");
  Gpt saved(GetParam());
  saved.Materialize(kCpu, 5);
  Save(saved, folder);
  EXPECT_EQ(ReadHfConfig(folder), GetParam());
  Gpt loaded(ReadHfConfig(folder));
  loaded.Materialize(kCpu, 6);
  LoadHfWeights(loaded, folder);
  const auto a = saved.NamedParameters(), b = loaded.NamedParameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_EQ(a[i].second->value().ToVector<float>(), b[i].second->value().ToVector<float>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, HfRoundTrip,
                         testing::Values(kSmall,
                                         GptConfig{.vocab_size = 11,
                                                   .block_size = 6,
                                                   .n_layer = 1,
                                                   .n_head = 2,
                                                   .n_embd = 8,
                                                   .bias = false},
                                         GptConfig{.vocab_size = 11,
                                                   .block_size = 6,
                                                   .n_layer = 1,
                                                   .n_head = 2,
                                                   .n_embd = 8,
                                                   .tie_embeddings = false}));

// Conv1D stores [in, out], and a bias is always there.
TEST(HfFormat, HasTheNamesAndShapesOfTransformers) {
  Gpt model(
      {.vocab_size = 11, .block_size = 6, .n_layer = 1, .n_head = 2, .n_embd = 8, .bias = false});
  model.Materialize(kCpu, 1);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const SafetensorsItem& item : ToHfTensors(model)) shapes[item.name] = item.shape;
  const std::map<std::string, std::vector<int64_t>> expected = {{"wte.weight", {11, 8}},
                                                                {"wpe.weight", {6, 8}},
                                                                {"h.0.ln_1.weight", {8}},
                                                                {"h.0.ln_1.bias", {8}},
                                                                {"h.0.attn.c_attn.weight", {8, 24}},
                                                                {"h.0.attn.c_attn.bias", {24}},
                                                                {"h.0.attn.c_proj.weight", {8, 8}},
                                                                {"h.0.attn.c_proj.bias", {8}},
                                                                {"h.0.ln_2.weight", {8}},
                                                                {"h.0.ln_2.bias", {8}},
                                                                {"h.0.mlp.c_fc.weight", {8, 32}},
                                                                {"h.0.mlp.c_fc.bias", {32}},
                                                                {"h.0.mlp.c_proj.weight", {32, 8}},
                                                                {"h.0.mlp.c_proj.bias", {8}},
                                                                {"ln_f.weight", {8}},
                                                                {"ln_f.bias", {8}}};
  EXPECT_EQ(shapes, expected);
}

TEST(HfFormat, RefusesWeightsOfAnotherModel) {
  const std::string folder = Folder("other_model");
  Gpt saved(kSmall);
  saved.Materialize(kCpu, 5);
  Save(saved, folder);
  const auto load = [&](GptConfig config) {
    return ErrorOf([&] {
      Gpt model(config);
      model.Materialize(kCpu, 1);
      LoadHfWeights(model, folder);
    });
  };
  GptConfig wider = kSmall;
  wider.n_embd = 16;
  EXPECT_THAT(load(wider), HasSubstr("has shape [11, 8], but this model needs [11, 16]"));
  GptConfig deeper = kSmall;
  deeper.n_layer = 3;
  EXPECT_THAT(load(deeper), HasSubstr("weights of this model are missing: h.2.ln_1.weight"));
  GptConfig shallower = kSmall;
  shallower.n_layer = 1;
  EXPECT_THAT(load(shallower), HasSubstr("weights that this model has no place for: h.1."));
}

TEST(HfFormat, RefusesBiasesThatTheModelLacks) {
  const std::string folder = Folder("biases");
  Gpt saved(kSmall);
  saved.Materialize(kCpu, 5);
  saved.NamedParameters()[3].second->value().Detach().Fill(1);
  ASSERT_EQ(saved.NamedParameters()[3].first, "h.0.ln_1.bias");
  Save(saved, folder);
  GptConfig config = kSmall;
  config.bias = false;
  Gpt model(config);
  model.Materialize(kCpu, 1);
  EXPECT_THAT(ErrorOf([&] { LoadHfWeights(model, folder); }),
              HasSubstr("'h.0.ln_1.bias' is not zero, but the model has no biases"));
}

TEST(HfFormat, NamesTheFieldOfABadConfig) {
  const auto error = [](const std::string& json) {
    return ErrorOf([&] { FromHfConfig(json, "config.json"); });
  };
  const std::string good = ToHfConfig(kSmall);
  EXPECT_EQ(error(good), "no error");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return error(text);
  };
  EXPECT_THAT(with("\"n_head\": 2", "\"n_head\": \"2\""),
              HasSubstr("config.json: \"n_head\" must be an integer"));
  EXPECT_THAT(with("\"n_head\": 2", "\"n_head\": 3"),
              HasSubstr("n_embd = 8 is not divisible by n_head = 3"));
  EXPECT_THAT(with("\"n_layer\": 2", "\"n_layer\": -2"), HasSubstr("n_layer must be positive"));
  EXPECT_THAT(with("\"gpt2\"", "\"llama\""),
              HasSubstr("\"model_type\" is \"llama\"; only \"gpt2\""));
  EXPECT_THAT(with("gelu_new", "relu"), HasSubstr("\"activation_function\" is \"relu\""));
  EXPECT_THAT(error("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error("{"), HasSubstr("config.json"));
}

}  // namespace
}  // namespace lockstep::models
