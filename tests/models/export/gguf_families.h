// Tiny models of all families that GGUF has, and an independent reader of their tensors.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/export/gguf_model.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/models/export/gguf_file.h"
#include "tests/models/temp_folder.h"

namespace lockstep::test {

using models::GgufModel;
using models::GgufType;
using models::Gpt;
using models::GptConfig;

// A family's parity model, with what llama.cpp can't say changed in config.json.
struct GgufFamily {
  std::string family, architecture;
  Json changes = Json::object();
  bool random = false;  // the parity model has what llama.cpp lacks; another of its sizes
};

inline const std::vector<GgufFamily>& GgufFamilyCases() {
  static const std::vector<GgufFamily> cases = {
      {"gpt2", "gpt2"},
      {"llama", "llama"},
      {"llama_tied", "llama"},
      {"mistral", "llama", {{"sliding_window", nullptr}}},
      {"mixtral", "llama"},
      {"qwen2", "qwen2"},
      {"qwen3", "qwen3"},
      {"qwen3_moe",
       "qwen3moe",
       {{"norm_topk_prob", true}, {"mlp_only_layers", Json::array()}},
       true},
      {"gemma2", "gemma2", {{"query_pre_attn_scalar", 10}}},
      {"gemma3", "gemma3"},
      {"olmo2", "olmo2"},
      {"smollm3", "smollm3", {{"no_rope_layers", {1, 1, 1, 0}}}},
  };
  return cases;
}

inline std::string FolderOf(const GgufFamily& c) {
  return "tests/testdata/" + c.family + "_parity";
}

inline GptConfig ConfigOf(const GgufFamily& c, const Json& changes) {
  Json config = Json::parse(ReadFile(FolderOf(c) + "/config.json"));
  config.update(changes);
  return models::FromHfConfig(config.dump(), c.family);
}

// The folder with the weights of a case.
inline std::string WeightsOf(const GgufFamily& c, const GptConfig& config,
                             const TempFolder& scratch) {
  if (!c.random) return FolderOf(c);
  Gpt model(config);
  model.Materialize(kCpu, 11);
  models::WriteHfFolder(scratch.Path("hf"), ToHfConfig(config), ToHfTensors(model), 1 << 30);
  return scratch.Path("hf");
}

// The model of `folder`, which LoadHfWeights reads, as a file of this type.
inline void WriteFamily(const GptConfig& config, const std::string& folder, GgufType type,
                        const std::string& path) {
  Gpt model(config);
  model.Materialize(kCpu, 0);
  LoadHfWeights(model, folder);
  const GgufModel gguf = ToGguf(config, ToHfTensors(model), type, "tiny");
  WriteGguf(path, gguf.metadata, gguf.tensors);
}

inline GgufFile WriteFamily(const GptConfig& config, const std::string& folder, GgufType type) {
  const TempFolder to("gguf");
  WriteFamily(config, folder, type, to.Path("f"));
  return GgufFile(to.Path("f"));
}

// A tensor of Hugging Face's, row-major.
struct Matrix {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// The inverse of the writer, by the names of llama.cpp's documents.
class HfTensorsByHand {
 public:
  HfTensorsByHand(const GgufFile& file, const GptConfig& c) : file_(file), c_(c) {}

  std::map<std::string, Matrix> All() const {
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

}  // namespace lockstep::test
