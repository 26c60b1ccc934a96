// config.json of a GGUF file.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/io/json.h"
#include "kernels/rotary_embedding/rotary_embedding.h"
#include "models/gpt/gguf/gguf_names.h"
#include "models/gpt/gguf/gguf_reader.h"

namespace lockstep::models {
namespace {

// What Llama 3.1's and 3.2's config.json have.
constexpr double kLowFrequency = 1, kHighFrequency = 4;
constexpr int64_t kOriginalLength = 8192;

class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file), f_(file.metadata()) {}

  Json Read() && {
    ReadArchitecture();
    const GgufEntry& embedding = file_.Get(kGgufEmbedding);
    if (embedding.shape.ndim() != 2) {
      throw InputError(StrCat(file_.source(), ": tensor '", kGgufEmbedding, "' has shape ",
                              embedding.shape, ", which is no matrix"));
    }
    j_["vocab_size"] = embedding.shape[0];
    // A tied head that is in the file nevertheless has the embedding's bytes.
    const GgufEntry* head = file_.Find("output.weight");
    j_["tie_word_embeddings"] = head == nullptr || std::ranges::equal(head->bytes, embedding.bytes);
    if (arch_ == "gpt2") {
      ReadGpt2();
    } else {
      ReadLlama();
    }
    CheckKnown();
    return std::move(j_);
  }

 private:
  std::string Key(std::string_view key) {
    known_.insert(std::string(key));
    return StrCat(arch_, ".", key);
  }
  bool Has(std::string_view key) { return f_.Has(Key(key).c_str()); }
  int64_t Integer(std::string_view key) { return f_.Integer(Key(key).c_str()); }
  int64_t Integer(std::string_view key, int64_t otherwise) {
    return f_.Integer(Key(key).c_str(), otherwise);
  }
  double Number(std::string_view key) {
    const std::string full = Key(key);
    if (!f_.Has(full.c_str())) f_.Fail(full.c_str(), "is missing");
    return f_.Number(full.c_str(), 0);
  }
  void Expect(std::string_view key, const Json& want) { f_.Expect(Key(key).c_str(), want); }

  void ReadArchitecture() {
    if (const std::string type = f_.Text("general.type", "model"); type != "model") {
      f_.Fail(
          "general.type",
          StrCat("is \"", type, "\"; only a \"model\" can be read as one",
                 type == "adapter" ? ": name an adapter with --adapter (in train_gpt "
                                     "--lora.init_from), and here the weights that it belongs to"
                                   : ""));
    }
    arch_ = f_.Text("general.architecture", "");
    std::string all;
    for (const GgufArchitecture& a : GgufArchitectures()) {
      if (a.name == arch_ && !j_.contains("model_type")) j_["model_type"] = a.model_type;
      if (all.ends_with(a.name)) continue;
      all += StrCat(all.empty() ? "" : ", ", a.name);
    }
    if (!j_.contains("model_type")) {
      f_.Fail("general.architecture", StrCat("is \"", arch_, "\"; Lockstep reads ", all));
    }
  }

  // No more than a file of this size can have.
  int64_t Layers() {
    const int64_t layers = Integer("block_count");
    if (layers > std::ssize(file_.tensors())) {
      f_.Fail(Key("block_count").c_str(), StrCat("is ", layers, ", for which tensors are missing"));
    }
    return layers;
  }

  void ReadGpt2() {
    j_["n_embd"] = Integer("embedding_length");
    j_["n_layer"] = Layers();
    j_["n_head"] = Integer("attention.head_count");
    j_["n_inner"] = Integer("feed_forward_length");
    j_["n_positions"] = Integer("context_length");
    j_["layer_norm_epsilon"] = Number("attention.layer_norm_epsilon");
    const int64_t heads = j_["n_head"], head_dim = heads > 0 ? int64_t{j_["n_embd"]} / heads : 0;
    Expect("attention.head_count_kv", heads);
    for (const char* key : {"attention.key_length", "attention.value_length"}) {
      Expect(key, head_dim);
    }
  }

  void ReadLlama() {
    j_["hidden_size"] = Integer("embedding_length");
    j_["num_hidden_layers"] = Layers();
    j_["intermediate_size"] = Integer("feed_forward_length");
    j_["max_position_embeddings"] = Integer("context_length");
    const int64_t heads = Integer("attention.head_count");
    j_["num_attention_heads"] = heads;
    j_["num_key_value_heads"] = Integer("attention.head_count_kv", heads);
    if (heads < 1) f_.Fail(Key("attention.head_count").c_str(), "must be positive");
    head_dim_ = Integer("attention.key_length", int64_t{j_["hidden_size"]} / heads);
    j_["head_dim"] = head_dim_;
    Expect("attention.value_length", head_dim_);
    j_["rms_norm_eps"] = Number("attention.layer_norm_rms_epsilon");
    j_["attention_bias"] = file_.Find("blk.0.attn_output.bias") != nullptr;
    j_["mlp_bias"] = file_.Find("blk.0.ffn_down.bias") != nullptr;
    ReadExperts();
    ReadRope();
    if (arch_.starts_with("gemma")) ReadGemma();
  }

  void ReadExperts() {
    const int64_t experts = Integer("expert_count", 0);
    const int64_t used = Integer("expert_used_count", experts);
    if (experts == 0) return;
    if (arch_ != "llama" && arch_ != "qwen3moe") {
      f_.Fail(Key("expert_count").c_str(), "must be 0 in this architecture");
    }
    if (file_.Get("blk.0.ffn_gate_inp.weight").shape[0] != experts) {
      f_.Fail(Key("expert_count").c_str(),
              "is not the number of rows of blk.0.ffn_gate_inp.weight");
    }
    if (arch_ == "llama") j_["model_type"] = "mixtral";
    j_["num_local_experts"] = experts;
    j_["num_experts_per_tok"] = used;
    if (arch_ == "qwen3moe") {
      j_["moe_intermediate_size"] = Integer("expert_feed_forward_length");
      j_["norm_topk_prob"] = true;
    }
  }

  void ReadRope() {
    j_["rope_theta"] = Has("rope.freq_base") ? Number("rope.freq_base") : 1e4;
    Expect("rope.dimension_count", head_dim_);
    const std::string type = f_.Text(Key("rope.scaling.type").c_str(), "none");
    const int64_t original = Integer("rope.scaling.original_context_length", kOriginalLength);
    if (type == "linear") {
      j_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", Number("rope.scaling.factor")}};
    } else if (type != "none") {
      f_.Fail(Key("rope.scaling.type").c_str(),
              StrCat("is \"", type, "\"; only \"linear\" and \"none\" are supported"));
    }
    if (file_.Find(kFrequencies) != nullptr) ReadFrequencies(original);
  }

  // Whether the frequencies of `rope` are those without scaling over the divisors.
  bool Scale(const std::vector<float>& divisors, double theta, const RotaryOptions& rope) const {
    if (std::ssize(divisors) * 2 != head_dim_) return false;
    try {
      const auto plain = RotaryFrequencies(head_dim_, {.theta = theta});
      const auto scaled = RotaryFrequencies(head_dim_, rope);
      for (size_t i = 0; i < plain.size(); ++i) {
        if (!(std::abs(divisors[i] * scaled[i] / plain[i] - 1) < 1e-5)) return false;
      }
      return true;
    } catch (const ArgumentError&) {  // numbers that are none
      return false;
    }
  }

  // Divisors of the frequencies: 1 for the highest, the factor for the lowest.
  void ReadFrequencies(int64_t original) {
    const GgufEntry& entry = file_.Get(kFrequencies);
    const std::vector<float> divisors =
        entry.ToTensor().To(DType::kF32).Reshape({entry.shape.numel()}).ToVector<float>();
    const double theta = j_["rope_theta"], factor = divisors.back();
    const RotaryOptions rope = {.theta = theta,
                                .scaling = RotaryScaling::kLlama3,
                                .factor = factor,
                                .low = kLowFrequency,
                                .high = kHighFrequency,
                                .original_length = original};
    if (j_.contains("rope_scaling") || !Scale(divisors, theta, rope)) {
      throw InputError(StrCat(file_.source(), ": tensor '", kFrequencies,
                              "' does not scale frequencies as Llama 3.1 does, with a ",
                              "low_freq_factor of 1, a high_freq_factor of 4 and an original ",
                              "length of ", original, ": start from the Hugging Face folder"));
    }
    j_["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", factor},
                          {"low_freq_factor", kLowFrequency},
                          {"high_freq_factor", kHighFrequency},
                          {"original_max_position_embeddings", original}};
  }

  void ReadGemma() {
    const int64_t layers = j_["num_hidden_layers"], heads = j_["num_attention_heads"];
    const int64_t length = j_["max_position_embeddings"], width = j_["hidden_size"];
    const bool large = std::ranges::any_of(GgufArchitectures(), [&](const GgufArchitecture& a) {
      return a.name == arch_ && a.large_layers == layers;
    });
    j_["hidden_activation"] = "gelu_pytorch_tanh";
    j_["query_pre_attn_scalar"] = large ? width / heads : head_dim_;
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      if (Has(key)) j_[key] = Number(key);
    }
    const bool two = arch_ == "gemma2";
    const int64_t window = Integer("attention.sliding_window", two ? 4096 : 0);
    // Gemma 2 cannot be written without a window, but with one that is no less than all.
    const bool windows = window > 0 && !(two && window >= length);
    j_["sliding_window"] = windows ? Json(window) : Json(nullptr);
    const double theta = j_["rope_theta"];
    const bool has_own = Has("rope.freq_base_swa");
    const double local = has_own ? Number("rope.freq_base_swa") : two ? theta : 1e4;
    if (two && local != theta) {
      f_.Fail(Key("rope.freq_base_swa").c_str(), "differs from gemma2.rope.freq_base");
    }
    j_["rope_local_base_freq"] = windows ? local : theta;
    ReadPattern(layers, windows, two ? 2 : 6);
  }

  // Every n-th layer sees all tokens; or a list says which do not.
  void ReadPattern(int64_t layers, bool windows, int64_t usual) {
    const std::string key = Key("attention.sliding_window_pattern");
    const bool listed = f_.Has(key.c_str()) && f_.j[key].is_array();
    const int64_t pattern = listed ? 0 : f_.Integer(key.c_str(), usual);
    if (layers < 0 || layers > 1 << 16 || (listed && std::ssize(f_.j[key]) < layers)) {
      f_.Fail(key.c_str(), "must have an entry for each layer");
    }
    j_["layer_types"] = Json::array();
    for (int64_t i = 0; i < layers; ++i) {
      const bool has = listed ? f_.j[key][static_cast<size_t>(i)] == true
                              : pattern == 0 || i % pattern < pattern - 1;
      j_["layer_types"].push_back(windows && has ? "sliding_attention" : "full_attention");
    }
  }

  // The others might change the numbers.
  void CheckKnown() const {
    // What the tensors say, or nothing depends on.
    static const std::set<std::string> ignored = {"vocab_size", "rope.scaling.factor",
                                                  "tensor_data_layout", "rope.scaling.finetuned"};
    for (const auto& [key, value] : f_.j.items()) {
      if (!key.starts_with(arch_ + ".")) continue;
      const std::string rest = key.substr(arch_.size() + 1);
      if (known_.contains(rest) || ignored.contains(rest)) continue;
      f_.Fail(key.c_str(),
              "is not known to Lockstep, and may change what the model computes: start from the "
              "Hugging Face folder");
    }
  }

  static constexpr char kFrequencies[] = "rope_freqs.weight";

  const GgufFile& file_;
  const Fields f_;
  std::string arch_;
  int64_t head_dim_ = 0;
  Json j_ = Json::object();
  std::set<std::string> known_;  // keys, without the architecture
};

}  // namespace

std::string HfConfigOf(const GgufFile& file) { return (ConfigReader(file).Read()).dump(2); }

}  // namespace lockstep::models
