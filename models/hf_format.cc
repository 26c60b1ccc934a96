#include "models/hf_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "core/json.h"
#include "core/safetensors.h"

namespace lockstep::models {
namespace {

using Json = nlohmann::ordered_json;

// GPT-2's linear layers are Conv1D modules in Hugging Face's code: stored [in, out].
bool IsConv1d(const std::string& name) {
  return name.ends_with("c_attn.weight") || name.ends_with("c_proj.weight") ||
         name.ends_with("c_fc.weight");
}

// For each weight of a linear layer or norm, the bias that the format wants beside it.
std::vector<std::pair<std::string, int64_t>> MissingBiases(const Gpt& model) {
  std::vector<std::pair<std::string, int64_t>> out;
  if (model.config().bias) return out;
  for (const auto& [name, p] : model.NamedParameters()) {
    if (name == "wte.weight" || name == "wpe.weight" || name == "lm_head.weight") continue;
    out.emplace_back(name.substr(0, name.size() - std::string("weight").size()) + "bias",
                     p->logical_shape()[0]);
  }
  return out;
}

int64_t Integer(const nlohmann::json& j, const char* key, const std::string& source) {
  if (!j.contains(key) || !j[key].is_number_integer()) {
    throw InputError(StrCat(source, ": \"", key, "\" must be an integer"));
  }
  return j[key].get<int64_t>();
}

double Number(const nlohmann::json& j, const char* key, double otherwise,
              const std::string& source) {
  if (!j.contains(key)) return otherwise;
  if (!j[key].is_number()) throw InputError(StrCat(source, ": \"", key, "\" must be a number"));
  return j[key].get<double>();
}

// What this GPT-2 does not implement must not be ignored silently.
void CheckVariant(const nlohmann::json& j, const std::string& source) {
  const auto expect = [&](const char* key, const nlohmann::json& want) {
    if (j.contains(key) && !j[key].is_null() && j[key] != want) {
      throw InputError(StrCat(source, ": \"", key, "\" is ", j[key].dump(), "; only ", want.dump(),
                              " is supported"));
    }
  };
  expect("model_type", "gpt2");
  expect("activation_function", "gelu_new");
  expect("scale_attn_weights", true);
  expect("scale_attn_by_inverse_layer_idx", false);
  expect("layer_norm_epsilon", 1e-5);
  expect("add_cross_attention", false);
  if (j.contains("n_inner") && !j["n_inner"].is_null()) {
    expect("n_inner", 4 * Integer(j, "n_embd", source));
  }
}

void CopyWeight(const SafetensorsEntry& entry, bool transposed, Parameter& parameter) {
  Tensor stored = entry.ToTensor();
  const Tensor value = parameter.value().Detach();
  const Tensor expected = transposed ? value.Transpose(0, 1) : value;
  if (!(stored.shape() == expected.shape())) {
    throw InputError(StrCat(*entry.source, ": '", entry.name, "' has shape ", stored.shape(),
                            ", but this model needs ", expected.shape(),
                            ": the model options differ from those of the file"));
  }
  expected.CopyFrom(stored);
}

// A tied head that a file has all the same must be the embedding, or the model is another one.
void CheckTiedHead(const SafetensorsEntry& head, const SafetensorsEntry& embedding) {
  const bool equal = head.bytes.size() == embedding.bytes.size() &&
                     std::equal(head.bytes.begin(), head.bytes.end(), embedding.bytes.begin());
  if (!equal) {
    throw InputError(StrCat(*head.source,
                            ": 'lm_head.weight' is not the token embedding; set "
                            "model.tie_embeddings=false"));
  }
}

void CheckZero(const SafetensorsEntry& entry) {
  const Tensor t = entry.ToTensor().To(DType::kF64);
  for (double v : t.ToVector<double>()) {
    if (v != 0) {
      throw InputError(StrCat(*entry.source, ": '", entry.name,
                              "' is not zero, but the model has no biases; set model.bias=true"));
    }
  }
}

}  // namespace

std::string ToHfConfig(const GptConfig& c) {
  Json j;
  j["architectures"] = {"GPT2LMHeadModel"};
  j["model_type"] = "gpt2";
  j["vocab_size"] = c.vocab_size;
  j["n_positions"] = c.block_size;
  j["n_ctx"] = c.block_size;
  j["n_embd"] = c.n_embd;
  j["n_layer"] = c.n_layer;
  j["n_head"] = c.n_head;
  j["n_inner"] = nullptr;
  j["activation_function"] = "gelu_new";
  j["layer_norm_epsilon"] = 1e-5;
  j["resid_pdrop"] = c.dropout;
  j["embd_pdrop"] = c.dropout;
  j["attn_pdrop"] = c.dropout;
  j["tie_word_embeddings"] = c.tie_embeddings;
  // The defaults (50256) would lie outside small vocabularies.
  const bool gpt2_vocabulary = c.vocab_size >= 50257;
  j["bos_token_id"] = gpt2_vocabulary ? Json(50256) : Json(nullptr);
  j["eos_token_id"] = gpt2_vocabulary ? Json(50256) : Json(nullptr);
  j["torch_dtype"] = "float32";
  j["lockstep"] = {{"bias", c.bias}};
  return j.dump(2) + "\n";
}

GptConfig FromHfConfig(const std::string& text, const std::string& source) {
  const nlohmann::json j = ParseJson(text, source);
  if (!j.is_object()) throw InputError(StrCat(source, ": not a JSON object"));
  CheckVariant(j, source);
  GptConfig c;
  c.vocab_size = Integer(j, "vocab_size", source);
  c.block_size = Integer(j, j.contains("n_positions") ? "n_positions" : "n_ctx", source);
  c.n_embd = Integer(j, "n_embd", source);
  c.n_layer = Integer(j, "n_layer", source);
  c.n_head = Integer(j, "n_head", source);
  c.dropout = Number(j, "resid_pdrop", 0, source);
  c.tie_embeddings = !j.contains("tie_word_embeddings") || j["tie_word_embeddings"] != false;
  if (j.contains("lockstep")) {
    const auto& ours = j["lockstep"];
    if (!ours.is_object() || !ours.contains("bias") || !ours["bias"].is_boolean()) {
      throw InputError(StrCat(source, ": \"lockstep\" must be an object with a boolean \"bias\""));
    }
    c.bias = ours["bias"].get<bool>();
  }
  try {
    Validate(c);
  } catch (const ArgumentError& e) {
    throw InputError(StrCat(source, ": ", e.what()));
  }
  return c;
}

GptConfig ReadHfConfig(const std::string& path) {
  const std::string file = path + "/config.json";
  return FromHfConfig(ReadFile(file), file);
}

std::vector<SafetensorsItem> ToHfTensors(Gpt& model) {
  std::vector<SafetensorsItem> items;
  for (const auto& [name, p] : model.NamedParameters()) {
    const Tensor value = p->value().Detach();
    items.push_back(SafetensorsItem::Of(name, IsConv1d(name) ? value.Transpose(0, 1) : value));
  }
  for (const auto& [name, size] : MissingBiases(model)) {
    items.push_back(SafetensorsItem::Of(name, Tensor::Zeros({size}, DType::kF32)));
  }
  return items;
}

void LoadHfWeights(Gpt& model, const std::string& path) {
  const SafetensorsSet set = SafetensorsSet::Open(path);
  const auto find = [&](const std::string& name) {
    const SafetensorsEntry* entry = set.Find(name);
    return entry ? entry : set.Find("transformer." + name);
  };
  std::set<std::string> used;
  std::string missing;
  for (const auto& [name, p] : model.NamedParameters()) {
    if (const SafetensorsEntry* entry = find(name)) {
      CopyWeight(*entry, IsConv1d(name), *p);
      used.insert(entry->name);
    } else {
      missing += " " + name;
    }
  }
  if (!missing.empty()) {
    throw InputError(StrCat(set.source(), ": weights of this model are missing:", missing));
  }
  for (const auto& [name, size] : MissingBiases(model)) {
    if (const SafetensorsEntry* entry = find(name)) {
      CheckZero(*entry);
      used.insert(entry->name);
    }
  }
  if (const SafetensorsEntry* head = set.Find("lm_head.weight");
      head && model.config().tie_embeddings) {
    CheckTiedHead(*head, *find("wte.weight"));
    used.insert(head->name);
  }
  std::string unknown;
  for (const std::string& name : set.names()) {
    // Old exports carry the causal masks.
    const bool known =
        used.contains(name) || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    if (!known) unknown += " " + name;
  }
  if (!unknown.empty()) {
    throw InputError(StrCat(set.source(), ": weights that this model has no place for:", unknown));
  }
}

}  // namespace lockstep::models
