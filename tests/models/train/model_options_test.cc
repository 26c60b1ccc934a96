// Every model option changes the model.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"
#include "core/step_state.h"
#include "models/gpt/gpt.h"
#include "models/train/model_shape.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

struct Outcome {
  int64_t parameters = 0;
  std::vector<float> logits;
  bool operator==(const Outcome&) const = default;
};

// With random parameters, so that each has an effect, and in training.
Outcome Of(const std::vector<std::string>& arguments) {
  RunConfig config = ParsedRun(arguments).config;
  if (config.model.vocab_size == 0) config.model.vocab_size = 17;
  Gpt model(ToGptConfig(config.model));
  model.Materialize(kCpu, 3);
  uint64_t stream = 0;
  for (const auto& p : model.Parameters()) {
    float* x = p->value().data<float>();
    for (int64_t i = 0; i < p->value().numel(); ++i) {
      x[i] = ToUniform(Philox(7).At(stream, static_cast<uint64_t>(i))) - 0.5f;
    }
    ++stream;
  }
  const StepState state(kCpu, 5);
  const TrainingScope training(state);
  const Tensor ids = Tensor::FromVector<int32_t>({1, 7, 3, 3, 10, 2, 9, 9}, {1, 8});
  return {model.NumParameters(), model(ids).ToVector<float>()};
}

TEST(ModelOptions, EachDoesSomething) {
  const std::vector<std::string> gpt2 = {"--model.n_embd=16", "--model.n_layer=1",
                                         "--model.n_head=4"};
  std::vector<std::string> experts = gpt2, rope = gpt2, linear, llama3, windows;
  for (const char* option : {"n_layer=2", "n_expert=4", "n_shared_expert=1"}) {
    experts.push_back(StrCat("--model.", option));
  }
  rope.push_back("--model.position=rope");
  linear = llama3 = windows = rope;
  std::vector<std::string> rms_norm = gpt2;
  rms_norm.push_back("--model.norm=rms_norm");
  for (const char* option : {"n_layer=2", "window=4", "window_pattern=2"}) {
    windows.push_back(StrCat("--model.", option));
  }
  linear.push_back("--model.rope_scaling=linear");
  linear.push_back("--model.rope_factor=3");
  llama3.push_back("--model.rope_scaling=llama3");
  llama3.push_back("--model.rope_factor=3");
  llama3.push_back("--model.rope_original_length=20");
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {gpt2,
       {"--model.vocab_size=18",
        "--model.block_size=65",
        "--model.n_layer=2",
        "--model.n_head=2",
        "--model.n_embd=20",
        "--model.dropout=0.5",
        "--model.bias",
        "--model.norm=rms_norm",
        "--model.activation=gelu_exact",
        "--model.activation=relu",
        "--model.activation=relu2",
        "--model.activation=silu",
        "--model.activation=swiglu",
        "--model.position=rope",
        "--model.tie_embeddings=false",
        "--model.n_kv_head=2",
        "--model.head_dim=5",
        "--model.qkv_bias",
        "--model.qk_norm",
        "--model.qk_norm=full",
        "--model.value_embed",
        "--model.attn_scale=0.3",
        "--model.attn_softcap=2",
        "--model.window=5",
        "--model.norm_offset=1",
        "--model.norm_place=post",
        "--model.norm_place=sandwich",
        "--model.activation=geglu_tanh",
        "--model.embed_norm",
        "--model.embed_mix",
        "--model.logit_softcap=3",
        "--model.n_inner=48",
        "--model.norm_eps=0.01",
        "--model.preset=llama-tiny"}},
      {experts,
       {"--model.n_expert=5", "--model.n_expert_used=1", "--model.n_expert_inner=20",
        "--model.n_shared_expert=2", "--model.shared_gate", "--model.n_dense=1",
        "--model.router=softmax_all", "--model.router=sigmoid", "--model.router_scale=2"}},
      {rope,
       {"--model.rope_theta=100", "--model.block_size=8", "--model.rope_skip=1",
        "--model.rope_reverse", "--model.embed_scale=3"}},
      {rms_norm, {"--model.norm_weight=false"}},
      {windows, {"--model.window_pattern=3", "--model.rope_local_theta=100"}},
      {linear, {"--model.rope_factor=2", "--model.rope_scaling=llama3"}},
      {llama3, {"--model.rope_low=3", "--model.rope_high=2", "--model.rope_original_length=40"}}};
  for (const auto& [base, changes] : cases) {
    const Outcome before = Of(base);
    EXPECT_EQ(before, Of(base));
    for (const std::string& change : changes) {
      std::vector<std::string> arguments = base;
      arguments.push_back(change);
      const bool limit = change == "--model.block_size=8";  // rope has no table to grow
      EXPECT_EQ(Of(arguments) == before, limit) << change;
    }
  }
}

// The parameters above are always random.
TEST(ModelOptions, InitStdIsTheSpreadOfFreshWeights) {
  const auto spread = [](const std::vector<std::string>& arguments, const std::string& name) {
    RunConfig config = ParsedRun(arguments).config;
    config.model.vocab_size = 50;
    Gpt model(ToGptConfig(config.model));
    model.Materialize(kCpu, 3);
    double squares = 0, n = 0;
    for (const auto& [path, p] : model.NamedParameters()) {
      if (path != name) continue;
      for (const float x : p->value().ToVector<float>()) squares += x * x;
      n += static_cast<double>(p->value().numel());
    }
    return std::sqrt(squares / n);
  };
  const std::vector<std::string> base = {"--model.n_embd=64", "--model.n_layer=2"};
  std::vector<std::string> chosen = base;
  chosen.push_back("--model.init_std=0.05");
  for (const std::string name : {"wte.weight", "h.0.attn.c_attn.weight", "h.1.mlp.c_fc.weight"}) {
    EXPECT_NEAR(spread(base, name), 1.0 / 8, 0.005) << name;  // 1 / sqrt(n_embd)
    EXPECT_NEAR(spread(chosen, name), 0.05, 0.002) << name;
  }
  EXPECT_NEAR(spread(chosen, "h.0.mlp.c_proj.weight"), 0.05 / 2, 0.001);  // sqrt(2 n_layer) = 2
  chosen.push_back("--model.init_zero");
  chosen.push_back("--model.tie_embeddings=false");
  for (const std::string name :
       {"h.0.attn.c_proj.weight", "h.1.mlp.c_proj.weight", "lm_head.weight"}) {
    EXPECT_EQ(spread(chosen, name), 0) << name;
  }
  EXPECT_NEAR(spread(chosen, "h.1.mlp.c_fc.weight"), 0.05, 0.002);
}

TEST(ModelOptions, TheContextIsLimitedWithRopeToo) {
  Gpt model({.vocab_size = 5,
             .block_size = 3,
             .n_layer = 1,
             .n_head = 1,
             .n_embd = 4,
             .position = Position::kRope});
  model.Materialize(kCpu, 1);
  const Tensor ids = Tensor::FromVector<int32_t>({1, 2, 3, 4}, {1, 4});
  EXPECT_THAT(test::MessageOf([&] { model(ids); }),
              testing::HasSubstr("longer than the model's block_size = 3"));
}

TEST(GptConfigTest, WordsAndTheirEnumsAreInverse) {
  for (const char* word : {"layer_norm", "rms_norm"}) EXPECT_EQ(Name(ParseNorm(word)), word);
  for (const char* word : {"gelu", "gelu_exact", "relu", "relu2", "silu", "swiglu", "geglu_tanh"}) {
    EXPECT_EQ(Name(ParseActivation(word)), word);
  }
  for (const char* word : {"learned", "rope"}) EXPECT_EQ(Name(ParsePosition(word)), word);
  for (const char* word : {"none", "linear", "llama3"}) {
    EXPECT_EQ(Name(ParseRopeScaling(word)), word);
  }
  for (const char* word : {"none", "head", "full"}) EXPECT_EQ(Name(ParseQkNorm(word)), word);
  for (const char* word : {"pre", "post", "sandwich"}) EXPECT_EQ(Name(ParseNormPlace(word)), word);
  EXPECT_THROW(ParseNorm("batch_norm"), ArgumentError);
}

TEST(GptConfigTest, ZerosAreResolved) {
  GptConfig c{.n_head = 12, .n_embd = 768};
  EXPECT_EQ(Resolved(c).n_kv_head, 12);
  EXPECT_EQ(Resolved(c).head_dim, 64);
  EXPECT_EQ(Resolved(c).n_inner, 3072);
  c.activation = nn::MlpActivation::kSwiGlu;
  EXPECT_EQ(Resolved(c).n_inner, 2048);  // as many parameters as with two matrices
  c.n_embd = 100;
  EXPECT_EQ(DefaultInner(100, c.activation), 320);
  c.n_kv_head = 3;
  EXPECT_EQ(Resolved(c).n_kv_head, 3);
  c.head_dim = 10;
  EXPECT_EQ(Resolved(c).head_dim, 10);
  EXPECT_EQ(Resolved(Resolved(c)), Resolved(c));
}

TEST(GptConfigTest, BadOnesAreRefused) {
  const auto error = [](const std::function<void(GptConfig&)>& change) {
    GptConfig c;
    change(c);
    return test::MessageOf([&] { Validate(c); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(error([](GptConfig&) {}), "no error");
  EXPECT_THAT(error([](GptConfig& c) { c.n_kv_head = 5; }),
              HasSubstr("n_head = 12 is not divisible by n_kv_head = 5"));
  EXPECT_THAT(error([](GptConfig& c) { c.n_kv_head = -1; }), HasSubstr("n_kv_head must be"));
  EXPECT_THAT(error([](GptConfig& c) { c.head_dim = -1; }), HasSubstr("head_dim must be"));
  EXPECT_THAT(error([](GptConfig& c) { c.n_embd = 100; }),
              HasSubstr("n_embd = 100 is not divisible by n_head = 12: use a multiple, or set "
                        "head_dim"));
  EXPECT_EQ(error([](GptConfig& c) { c.n_embd = 100, c.head_dim = 8; }), "no error");
  EXPECT_THAT(error([](GptConfig& c) { c.position = Position::kRope, c.head_dim = 7; }),
              HasSubstr("the size of a head must be even, got 7"));
  EXPECT_THAT(error([](GptConfig& c) { c.n_inner = -1; }), HasSubstr("n_inner must be"));
  EXPECT_THAT(error([](GptConfig& c) { c.norm_eps = 0; }), HasSubstr("norm_eps must be"));
  EXPECT_THAT(error([](GptConfig& c) { c.init_std = -1; }), HasSubstr("init_std must not be"));
  EXPECT_THAT(error([](GptConfig& c) { c.norm_offset = 2; }), HasSubstr("must be 0 or 1, got 2"));
  EXPECT_THAT(error([](GptConfig& c) { c.norm_weight = false; }),
              HasSubstr("needs norm = rms_norm and norm_offset = 0"));
  EXPECT_THAT(error([](GptConfig& c) { c.embed_scale = 3; }),
              HasSubstr("embed_scale = 3 would also have to scale the learned positions"));
  EXPECT_THAT(error([](GptConfig& c) { c.window = -1; }), HasSubstr("window must be"));
  EXPECT_THAT(error([](GptConfig& c) { c.attn_softcap = NAN; }), HasSubstr("attn_softcap must be"));
  EXPECT_THAT(error([](GptConfig& c) { c.position = Position::kRope, c.n_embd = 36; }),
              HasSubstr("the size of a head must be even, got 3"));
  EXPECT_THAT(error([](GptConfig& c) { c.position = Position::kRope, c.rope.theta = 0; }),
              HasSubstr("theta must be positive"));
}

}  // namespace
}  // namespace lockstep::models
