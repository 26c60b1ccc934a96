// Tiny models of all families as GGUF, read back and mapped to Hugging Face's tensors.
#include "models/export/gguf_model.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/io/safetensors.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/message_of.h"
#include "tests/models/export/gguf_file.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using nlohmann::json;
using test::GgufFile;
using testing::AllOf;
using testing::HasSubstr;

// A family's parity model, with what llama.cpp can't say changed in config.json.
struct Case {
  std::string family, architecture;
  json changes = json::object();
  bool random = false;  // the parity model has what llama.cpp lacks; another of its sizes
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"gpt2", "gpt2"},
      {"llama", "llama"},
      {"llama_tied", "llama"},
      {"mistral", "llama", {{"sliding_window", nullptr}}},
      {"mixtral", "llama"},
      {"qwen2", "qwen2"},
      {"qwen3", "qwen3"},
      {"qwen3_moe",
       "qwen3moe",
       {{"norm_topk_prob", true}, {"mlp_only_layers", json::array()}},
       true},
      {"gemma2", "gemma2", {{"query_pre_attn_scalar", 10}}},
      {"gemma3", "gemma3"},
      {"olmo2", "olmo2"},
      {"smollm3", "smollm3", {{"no_rope_layers", {1, 1, 1, 0}}}},
  };
  return cases;
}

std::string FolderOf(const Case& c) { return "tests/testdata/" + c.family + "_parity"; }

GptConfig ConfigOf(const Case& c, const json& changes) {
  json config = json::parse(ReadFile(FolderOf(c) + "/config.json"));
  config.update(changes);
  return FromHfConfig(config.dump(), c.family);
}

// The folder with the weights of a case.
std::string WeightsOf(const Case& c, const GptConfig& config, const test::TempFolder& scratch) {
  if (!c.random) return FolderOf(c);
  Gpt model(config);
  model.Materialize(kCpu, 11);
  WriteHfFolder(scratch.Path("hf"), ToHfConfig(config), ToHfTensors(model), 1 << 30);
  return scratch.Path("hf");
}

GgufFile Write(const GptConfig& config, const std::string& folder, GgufType type) {
  Gpt model(config);
  model.Materialize(kCpu, 0);
  LoadHfWeights(model, folder);
  const GgufModel gguf = ToGguf(config, ToHfTensors(model), type, "tiny");
  const test::TempFolder to("gguf");
  WriteGguf(to.Path("f"), gguf.metadata, gguf.tensors);
  return GgufFile(to.Path("f"));
}

// A tensor of Hugging Face's, row-major.
struct Matrix {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// The inverse of the writer, by the names of llama.cpp's documents.
class Reader {
 public:
  Reader(const GgufFile& file, const GptConfig& c) : file_(file), c_(c) {}

  std::map<std::string, Matrix> HfTensors() const {
    std::map<std::string, Matrix> out;
    for (const auto& [name, t] : file_.tensors) {
      if (name == "rope_freqs.weight") continue;
      Matrix m{{t.sizes.rbegin(), t.sizes.rend()}, t.Floats()};
      std::string rest = name, prefix;
      if (name.starts_with("blk.")) {
        const size_t dot = name.find('.', 4);
        const std::string block = name.substr(4, dot - 4);
        prefix = gpt2_ ? StrCat("h.", block, ".") : StrCat("model.layers.", block, ".");
        rest = name.substr(dot + 1);
      }
      const size_t dot = rest.rfind('.');
      const std::string part = rest.substr(0, dot), kind = rest.substr(dot);
      const std::string theirs = Names().at(part);
      if (!gpt2_ && (part == "attn_q" || part == "attn_k") && pairs_) m = Halves(m);
      if (gpt2_ && kind == ".weight" && theirs.find("c_") != std::string::npos) m = Transposed(m);
      const size_t star = theirs.find('*');
      if (star == std::string::npos) {
        out[StrCat(prefix, theirs, kind)] = m;
        continue;
      }
      const int64_t one = m.shape[1] * m.shape[2];
      for (int64_t e = 0; e < m.shape[0]; ++e) {
        std::string own = theirs;
        out[StrCat(prefix, own.replace(star, 1, StrCat(e)), kind)] = {
            {m.shape[1], m.shape[2]},
            {m.values.begin() + e * one, m.values.begin() + (e + 1) * one}};
      }
    }
    return out;
  }

 private:
  std::map<std::string, std::string> Names() const {
    if (gpt2_) {
      return {{"token_embd", "wte"}, {"position_embd", "wpe"},    {"output_norm", "ln_f"},
              {"attn_norm", "ln_1"}, {"attn_qkv", "attn.c_attn"}, {"attn_output", "attn.c_proj"},
              {"ffn_norm", "ln_2"},  {"ffn_up", "mlp.c_fc"},      {"ffn_down", "mlp.c_proj"},
              {"output", "lm_head"}};
    }
    const bool post = arch_.starts_with("gemma") || arch_ == "olmo2";
    const bool mixtral = HfModelType(c_) == "mixtral";
    return {
        {"token_embd", "model.embed_tokens"},
        {"output_norm", "model.norm"},
        {"output", "lm_head"},
        {"attn_norm", "input_layernorm"},
        {"attn_q", "self_attn.q_proj"},
        {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"},
        {"attn_q_norm", "self_attn.q_norm"},
        {"attn_k_norm", "self_attn.k_norm"},
        {"attn_output", "self_attn.o_proj"},
        {"post_attention_norm", "post_attention_layernorm"},
        {"ffn_norm", post ? "pre_feedforward_layernorm" : "post_attention_layernorm"},
        {"post_ffw_norm", "post_feedforward_layernorm"},
        {"ffn_gate", "mlp.gate_proj"},
        {"ffn_up", "mlp.up_proj"},
        {"ffn_down", "mlp.down_proj"},
        {"ffn_gate_inp", mixtral ? "block_sparse_moe.gate" : "mlp.gate"},
        {"ffn_gate_exps", mixtral ? "block_sparse_moe.experts.*.w1" : "mlp.experts.*.gate_proj"},
        {"ffn_up_exps", mixtral ? "block_sparse_moe.experts.*.w3" : "mlp.experts.*.up_proj"},
        {"ffn_down_exps", mixtral ? "block_sparse_moe.experts.*.w2" : "mlp.experts.*.down_proj"}};
  }

  // Row 2i of a head is its row i, row 2i + 1 its row D/2 + i.
  Matrix Halves(const Matrix& m) const {
    Matrix out = m;
    const int64_t half = c_.head_dim / 2;
    const int64_t columns = std::ssize(m.values) / m.shape[0];
    for (int64_t r = 0; r < m.shape[0]; ++r) {
      const int64_t head = r / c_.head_dim, i = r % c_.head_dim;
      const int64_t to = head * c_.head_dim + i / 2 + (i % 2) * half;
      for (int64_t k = 0; k < columns; ++k) {
        out.values[static_cast<size_t>(to * columns + k)] =
            m.values[static_cast<size_t>(r * columns + k)];
      }
    }
    return out;
  }

  static Matrix Transposed(const Matrix& m) {
    Matrix out{{m.shape[1], m.shape[0]}, m.values};
    for (int64_t r = 0; r < m.shape[0]; ++r) {
      for (int64_t k = 0; k < m.shape[1]; ++k) {
        out.values[static_cast<size_t>(k * m.shape[0] + r)] =
            m.values[static_cast<size_t>(r * m.shape[1] + k)];
      }
    }
    return out;
  }

  const GgufFile& file_;
  const GptConfig& c_;
  const std::string arch_ = file_.Get<std::string>("general.architecture");
  const bool gpt2_ = arch_ == "gpt2", pairs_ = arch_ == "llama" || arch_ == "smollm3";
};

class GgufFamilies : public testing::TestWithParam<size_t> {
 protected:
  const Case& case_ = Cases()[GetParam()];
  const GptConfig config_ = ConfigOf(case_, case_.changes);
  const test::TempFolder scratch_{"gguf"};
  const std::string weights_ = WeightsOf(case_, config_, scratch_);
};

TEST_P(GgufFamilies, MapBackToHuggingFacesBits) {
  const GgufFile file = Write(config_, weights_, GgufType::kF32);
  EXPECT_EQ(file.Get<std::string>("general.architecture"), case_.architecture);
  const SafetensorsSet golden = SafetensorsSet::Open(weights_);
  const auto tensors = Reader(file, config_).HfTensors();
  EXPECT_EQ(tensors.size(), golden.names().size());
  for (const std::string& name : golden.names()) {
    const auto it = tensors.find(name);
    ASSERT_NE(it, tensors.end()) << name;
    EXPECT_EQ(it->second.shape, golden.Get(name).shape) << name;
    std::vector<float> want = golden.Get(name).ToTensor().To(DType::kF32).ToVector<float>();
    if (case_.architecture.starts_with("gemma") && name.ends_with("norm.weight")) {
      for (float& w : want) w += 1;
    }
    EXPECT_EQ(it->second.values, want) << name;
  }
}

TEST_P(GgufFamilies, HaveTheirSizes) {
  const GgufFile file = Write(config_, weights_, GgufType::kBF16);
  const auto number = [&](const std::string& key) {
    return int64_t{file.Get<uint32_t>(StrCat(case_.architecture, ".", key))};
  };
  EXPECT_EQ(file.Get<uint32_t>("general.file_type"), 32u);
  EXPECT_EQ(number("block_count"), config_.n_layer);
  EXPECT_EQ(number("context_length"), config_.block_size);
  EXPECT_EQ(number("embedding_length"), config_.n_embd);
  EXPECT_EQ(number("attention.head_count"), config_.n_head);
  EXPECT_EQ(number("attention.head_count_kv"), config_.n_kv_head);
  EXPECT_EQ(number("attention.key_length"), config_.head_dim);
  EXPECT_EQ(number("vocab_size"), 67);
  for (const auto& [name, t] : file.tensors) {
    const bool f32 = t.sizes.size() == 1 || name == "position_embd.weight" ||
                     name.ends_with("ffn_gate_inp.weight");
    EXPECT_EQ(t.type, f32 ? 0u : 30u) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamilies, testing::Range(size_t{0}, Cases().size()),
                         [](const auto& info) { return Cases()[info.param].family; });

const Case& CaseOf(const std::string& family) {
  return *std::ranges::find(Cases(), family, &Case::family);
}

TEST(GgufModelTest, ScalesFrequenciesByATensor) {
  const Case& c = CaseOf("llama");
  const GptConfig config = ConfigOf(c, json::object());
  const GgufFile file = Write(config, FolderOf(c), GgufType::kF32);
  const GgufFile::Tensor& t = file.tensors.at("rope_freqs.weight");
  // By the formula of Llama 3.1's code.
  std::vector<float> want;
  for (int i = 0; i < 4; ++i) {
    const double wavelength = 2 * M_PI * std::pow(100.0, 2 * i / 8.0);
    const double smooth = (31 / wavelength - 1.0) / (4.0 - 1.0);
    want.push_back(static_cast<float>(wavelength < 31 / 4.0   ? 1
                                      : wavelength > 31 / 1.0 ? 4
                                                              : 1 / ((1 - smooth) / 4 + smooth)));
  }
  EXPECT_THAT(want, testing::Contains(4.0F));
  EXPECT_THAT(want, testing::Contains(1.0F));
  EXPECT_THAT(t.Floats(), testing::Pointwise(testing::FloatEq(), want));
  EXPECT_FALSE(file.Has("llama.rope.scaling.type"));
  const Case& tied = CaseOf("llama_tied");
  const GgufFile linear = Write(ConfigOf(tied, json::object()), FolderOf(tied), GgufType::kF32);
  EXPECT_EQ(linear.Get<std::string>("llama.rope.scaling.type"), "linear");
  EXPECT_EQ(linear.Get<float>("llama.rope.scaling.factor"), 2);
  EXPECT_FALSE(linear.tensors.contains("output.weight"));
}

TEST(GgufModelTest, SaysWhatGemmaIs) {
  const Case& c = CaseOf("gemma3");
  const GgufFile file = Write(ConfigOf(c, json::object()), FolderOf(c), GgufType::kF32);
  EXPECT_EQ(file.Get<uint32_t>("gemma3.attention.sliding_window"), 5u);
  EXPECT_EQ(file.Get<uint32_t>("gemma3.attention.sliding_window_pattern"), 3u);
  EXPECT_EQ(file.Get<float>("gemma3.rope.freq_base"), 1000);
  EXPECT_EQ(file.Get<float>("gemma3.rope.freq_base_swa"), 50);
  EXPECT_EQ(file.Get<float>("gemma3.rope.scaling.factor"), 4);
  const Case& two = CaseOf("gemma2");
  const GptConfig config = ConfigOf(two, two.changes);
  const GgufFile file2 = Write(config, FolderOf(two), GgufType::kF32);
  EXPECT_EQ(file2.Get<float>("gemma2.attn_logit_softcapping"),
            static_cast<float>(config.attn_softcap));
  EXPECT_EQ(file2.Get<float>("gemma2.final_logit_softcapping"),
            static_cast<float>(config.logit_softcap));
}

// Matrices of 32 columns become blocks, others f16.
TEST(GgufModelTest, QuantizesWholeBlocks) {
  const Case& c = CaseOf("llama");
  const GgufFile file = Write(ConfigOf(c, json::object()), FolderOf(c), GgufType::kQ8_0);
  EXPECT_EQ(file.Get<uint32_t>("general.file_type"), 7u);
  int quantized = 0, halves = 0;
  for (const auto& [name, t] : file.tensors) {
    if (t.sizes.size() == 1) continue;
    EXPECT_EQ(t.type, t.sizes[0] % 32 == 0 ? 8u : 1u) << name;
    ++(t.sizes[0] % 32 == 0 ? quantized : halves);
  }
  EXPECT_GT(quantized, 10);
  EXPECT_GT(halves, 0);
}

TEST(GgufModelTest, WritesATiedHeadWhereItMust) {
  const Case& c = CaseOf("olmo2");
  const GptConfig config = ConfigOf(c, {{"tie_word_embeddings", true}});
  Gpt model(config);
  model.Materialize(kCpu, 0);
  const GgufModel gguf = ToGguf(config, ToHfTensors(model), GgufType::kF32, "tiny");
  const test::TempFolder to("gguf");
  WriteGguf(to.Path("f"), gguf.metadata, gguf.tensors);
  const GgufFile file(to.Path("f"));
  EXPECT_EQ(file.tensors.at("output.weight").bytes, file.tensors.at("token_embd.weight").bytes);
}

TEST(GgufModelTest, RefusesByNameWhatLlamaCppCannotDo) {
  const auto refused = [](const std::string& family, const json& changes) {
    return test::MessageOf<InputError>([&] {
      const GptConfig config = ConfigOf(CaseOf(family), changes);
      Gpt model(config);
      model.Materialize(kMeta, 0);
      ToGguf(config, ToHfTensors(model), GgufType::kF32, "tiny");
    });
  };
  EXPECT_THAT(refused("mistral", json::object()),
              AllOf(HasSubstr("\"sliding_window\" cannot be written to GGUF"),
                    HasSubstr("at most 5"), HasSubstr("--format=hf")));
  EXPECT_EQ(refused("mistral", {{"max_position_embeddings", 5}}), "no error");
  EXPECT_THAT(refused("gemma2", json::object()),
              AllOf(HasSubstr("\"query_pre_attn_scalar\""), HasSubstr("10^-1/2")));
  EXPECT_THAT(
      refused("gemma2", {{"query_pre_attn_scalar", 10}, {"attn_logit_softcapping", nullptr}}),
      HasSubstr("\"attn_logit_softcapping\""));
  EXPECT_THAT(
      refused("gemma2", {{"query_pre_attn_scalar", 10}, {"final_logit_softcapping", nullptr}}),
      HasSubstr("\"final_logit_softcapping\""));
  EXPECT_THAT(refused("gemma2", {{"query_pre_attn_scalar", 10}, {"tie_word_embeddings", false}}),
              HasSubstr("\"tie_word_embeddings\""));
  EXPECT_THAT(refused("gemma3", {{"attn_logit_softcapping", 50}}),
              HasSubstr("\"attn_logit_softcapping\""));
  EXPECT_THAT(refused("smollm3", json::object()), HasSubstr("\"no_rope_layers\""));
  EXPECT_THAT(refused("qwen3_moe", {{"norm_topk_prob", false}, {"mlp_only_layers", json::array()}}),
              HasSubstr("\"norm_topk_prob\""));
  EXPECT_THAT(refused("qwen3_moe", {{"norm_topk_prob", true}, {"mlp_only_layers", {0}}}),
              HasSubstr("\"mlp_only_layers\""));
  EXPECT_THAT(refused("gpt2", {{"activation_function", "relu"}}),
              HasSubstr("\"activation_function\""));
  EXPECT_THAT(refused("qwen3", {{"rope_parameters",
                                 {{"rope_type", "llama3"},
                                  {"rope_theta", 1000.0},
                                  {"factor", 4.0},
                                  {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 31}}}}),
              HasSubstr("\"rope_scaling\""));
  const std::string own = test::MessageOf<InputError>([] {
    const GptConfig config = Resolved(
        {.vocab_size = 8, .n_layer = 1, .n_head = 1, .n_embd = 8, .norm = NormKind::kRmsNorm});
    Gpt model(config);
    model.Materialize(kMeta, 0);
    ToGguf(config, ToHfTensors(model), GgufType::kF32, "tiny");
  });
  EXPECT_THAT(own, AllOf(HasSubstr("\"model_type\" is \"lockstep\""), HasSubstr("gemma3_text")));
}

}  // namespace
}  // namespace lockstep::models
