#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "models/gpt/hf/bitsandbytes.h"
#include "models/gpt/hf/family.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/hf/stored_tensors.h"
#include "nn/lora/quantized_linear.h"

namespace lockstep::models {
namespace {

// GPT-2's linear layers are Conv1D modules in Hugging Face's code: stored [in, out].
bool IsConv1d(const std::string& name) {
  return name.ends_with("c_attn.weight") || name.ends_with("c_proj.weight") ||
         name.ends_with("c_fc.weight");
}

// "h.3.attn.c_attn.weight" is {"h.3.", "attn.c_attn", "weight"}; "ln_f.weight" has no block.
struct Path {
  std::string block, layer, kind;
  explicit Path(const std::string& name) {
    size_t begin = 0;
    if (name.starts_with("h.")) begin = name.find('.', 2) + 1;
    const size_t dot = name.rfind('.');
    block = name.substr(0, begin);
    layer = name.substr(begin, dot - begin);
    kind = name.substr(dot + 1);
  }
};

// The rows of a joint linear layer, by their names in the file.
struct Part {
  std::string layer;
  int64_t rows;
};

std::vector<Part> LlamaParts(const HfFamily& family, const GptConfig& c, const std::string& layer,
                             int64_t rows) {
  if (layer == "attn.c_attn") {
    return {{"self_attn.q_proj", c.n_head * c.head_dim},
            {"self_attn.k_proj", c.n_kv_head * c.head_dim},
            {"self_attn.v_proj", c.n_kv_head * c.head_dim}};
  }
  if (layer == "mlp.c_fc" && nn::IsGated(c.activation))
    return {{"mlp.gate_proj", c.n_inner}, {"mlp.up_proj", c.n_inner}};
  if (layer == "mlp.router") return {{family.experts.router, rows}};
  static const std::vector<HfLayerName> llama = {{"wte", "embed_tokens"},
                                                 {"ln_f", "norm"},
                                                 {"ln_1", "input_layernorm"},
                                                 {"ln_2", "post_attention_layernorm"},
                                                 {"attn.q_norm", "self_attn.q_norm"},
                                                 {"attn.k_norm", "self_attn.k_norm"},
                                                 {"attn.c_proj", "self_attn.o_proj"},
                                                 {"mlp.c_proj", "mlp.down_proj"},
                                                 {"lm_head", "lm_head"}};
  for (const auto* names : {&family.names, &llama}) {
    for (const auto& [ours, theirs] : *names) {
      if (layer == ours) return {{theirs, rows}};
    }
  }
  throw ArgumentError(
      StrCat("the format ", family.model_type, " has no name for the layer ", layer));
}

// The matrices of experts.
std::vector<HfRows> ExpertPieces(const HfFamily& family, const GptConfig& c,
                                 const std::string& prefix, bool input) {
  const int64_t f = c.mixture.n_inner;
  const HfExpertNames& names = family.experts;
  std::vector<HfRows> out;
  for (int64_t e = 0; e < c.mixture.n_expert; ++e) {
    const auto add = [&](const std::string& name, int64_t begin, int64_t end) {
      out.push_back({StrCat(prefix, names.experts, e, ".", name, ".weight"), begin, end, false, e});
    };
    if (input) {
      add(names.gate, 0, f);
      add(names.up, f, 2 * f);
    } else {
      add(names.down, 0, c.n_embd);
    }
  }
  return out;
}

std::vector<HfRows> LlamaPieces(const HfFamily& family, const GptConfig& c, const std::string& name,
                                int64_t rows) {
  const Path path(name);
  std::string prefix = path.layer == "lm_head" ? "" : "model.";
  if (!path.block.empty()) prefix += "layers." + path.block.substr(2);
  if (path.layer.starts_with("mlp.experts.")) {
    return ExpertPieces(family, c, prefix, path.layer == "mlp.experts.c_fc");
  }
  std::vector<HfRows> out;
  int64_t begin = 0;
  for (const Part& part : LlamaParts(family, c, path.layer, rows)) {
    out.push_back({StrCat(prefix, part.layer, ".", path.kind), begin, begin + part.rows});
    begin += part.rows;
  }
  LS_INVARIANT(begin == rows);
  return out;
}

// The tensors of the file that make up a parameter of the model.
std::vector<HfRows> Pieces(const HfFamily& family, const GptConfig& c, const std::string& name,
                           const Parameter& p) {
  const int64_t rows = p.logical_shape()[0];
  switch (family.layout) {
    case HfLayout::kOwn:
      return {{name, 0, rows}};
    case HfLayout::kGpt2:
      return {{name, 0, rows, IsConv1d(name)}};
    case HfLayout::kLlama:
      return LlamaPieces(family, c, name, rows);
  }
  throw ArgumentError("no such layout");
}

// For each weight of a linear layer or norm, the bias that GPT-2's format requires with it.
std::vector<std::pair<std::string, int64_t>> MissingBiases(const HfFamily& family,
                                                           const Gpt& model) {
  std::vector<std::pair<std::string, int64_t>> out;
  if (model.config().bias || family.layout != HfLayout::kGpt2) return out;
  for (const auto& [name, p] : StoredParameters(model)) {
    if (name == "wte.weight" || name == "wpe.weight" || name == "lm_head.weight") continue;
    out.emplace_back(name.substr(0, name.size() - std::string("weight").size()) + "bias",
                     p->logical_shape()[0]);
  }
  for (const auto& [path, layer] : nn::QuantizedLayers(model)) {
    out.emplace_back(path + ".bias", layer->out_features());
  }
  return out;
}

void CheckFits(const SafetensorsEntry& entry, const Shape& expected) {
  entry.dtype();                                               // throws if Lockstep has none
  if (entry.shape.size() > Shape::kMaxDims) entry.ToTensor();  // throws
  const Shape stored(std::span<const int64_t>(entry.shape));
  if (!(stored == expected)) {
    throw InputError(StrCat(*entry.source, ": '", entry.name, "' has shape ", stored,
                            ", but this model needs ", expected,
                            ": the model options differ from those of the file"));
  }
}

// If the file has a head although it is tied, it must equal the embedding, or it is not tied there.
void CheckTiedHead(const HfFamily& family, const SafetensorsEntry& head,
                   const SafetensorsEntry& embedding) {
  const bool equal = head.bytes.size() == embedding.bytes.size() &&
                     std::equal(head.bytes.begin(), head.bytes.end(), embedding.bytes.begin());
  if (!equal) {
    throw InputError(
        StrCat(*head.source, ": 'lm_head.weight' is not the token embedding; set \"",
               family.layout == HfLayout::kOwn ? "tie_embeddings" : "tie_word_embeddings",
               "\" to false in config.json"));
  }
}

void CheckZero(const StoredTensor& stored) {
  const SafetensorsEntry& entry = stored.entry;
  const Tensor t = stored.read().To(DType::kF64);
  for (double v : t.ToVector<double>()) {
    if (v != 0) {
      throw InputError(StrCat(*entry.source, ": '", entry.name,
                              "' is not zero, but the model has no biases; set model.bias=true"));
    }
  }
}

// Old exports contain buffers: causal masks, the frequencies of rotary embedding.
bool IsBuffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

// A file's weights, for a model that they have been compared with.
class HfWeights {
 public:
  HfWeights(const Gpt& model, const std::string& path)
      : family_(HfFamilyOf(model.config())),
        config_(model.config()),
        set_(StoredTensors::Open(path)) {
    Check(model);
  }

  // The whole of a parameter, into a tensor of its shape.
  void Read(const std::string& name, const Parameter& p, const Tensor& whole) const {
    for (const HfRows& piece : Pieces(family_, config_, name, p)) {
      const Tensor rows = piece.Of(whole);
      if (const std::optional<Nf4Matrix> stored = FindNf4(piece, rows.shape())) {
        const Tensor matrix = piece.transposed ? rows.Transpose(0, 1) : rows;
        matrix.CopyFrom(ops::Nf4Dequantize(*stored, rows.dtype()));
      } else {
        rows.CopyFrom(Find(piece.name)->read());
      }
    }
  }

  // The weights of a layer that keeps them in 4 bits, quantised as soon as each matrix is read.
  void Read(const std::string& path, nn::QuantizedLayer& layer) const {
    const std::vector<HfRows> pieces = Pieces(family_, config_, path + ".weight", layer.weight());
    for (size_t i = 0; i < pieces.size(); ++i) {
      layer.SetMatrix(i, ReadQuantized(pieces[i], layer.shape(i), layer.double_quantized()));
    }
  }

 private:
  // With or without the prefix of the bare model.
  const StoredTensor* Find(const std::string& name) const {
    const StoredTensor* entry = set_.Find(name);
    if (!entry) entry = set_.Find("transformer." + name);
    if (!entry && name.starts_with("model.")) entry = set_.Find(name.substr(6));
    const bool embedding = name.ends_with("embed_tokens.weight") || name == "wte.weight";
    if (!entry && config_.tie_embeddings && embedding) entry = set_.Find("lm_head.weight");
    return entry;
  }

  // The matrix of this shape in the file, if its weights have 4 bits there.
  std::optional<Nf4Matrix> FindNf4(const HfRows& piece, const Shape& stored,
                                   const FindEntry& find) const {
    if (stored.ndim() != 2) return std::nullopt;
    const Shape shape = piece.transposed ? Shape({stored[1], stored[0]}) : stored;
    return ReadBitsAndBytes(find, piece.name, shape);
  }
  std::optional<Nf4Matrix> FindNf4(const HfRows& piece, const Shape& stored) const {
    return FindNf4(piece, stored, [this](const std::string& name) {
      const StoredTensor* found = Find(name);
      return found ? &found->entry : nullptr;
    });
  }

  // `shape`: [out, in].
  Nf4Matrix ReadQuantized(const HfRows& piece, const Shape& shape, bool double_quantized) const {
    const StoredTensor& found = *Find(piece.name);
    const SafetensorsEntry& entry = found.entry;
    const Shape in_file = piece.transposed ? Shape({shape[1], shape[0]}) : shape;
    if (std::optional<Nf4Matrix> matrix = FindNf4(piece, in_file)) {
      if (matrix->double_quantized == double_quantized) return *std::move(matrix);
      throw InputError(StrCat(*entry.source, ": '", entry.name, "' has scales of ",
                              matrix->double_quantized
                                  ? "8 bits: use --lora.base=nf4 (in sample_gpt --base=nf4)"
                                  : "f32: use --lora.base=nf4_single (in sample_gpt "
                                    "--base=nf4_single)"));
    }
    CheckFits(entry, in_file);
    const Tensor stored = found.read();
    try {
      return ops::Nf4Quantize(piece.transposed ? stored.Transpose(0, 1) : stored, double_quantized);
    } catch (const ArgumentError& error) {
      throw InputError(StrCat(*entry.source, ": '", entry.name, "': ", error.what()));
    }
  }

  void Check(const Gpt& model) const {
    std::set<std::string> used;
    const auto find = [&](const std::string& name) {
      const StoredTensor* found = Find(name);
      if (found) used.insert(found->entry.name);
      return found ? &found->entry : nullptr;
    };
    std::string missing;
    const SafetensorsEntry* embedding = nullptr;
    for (const auto& [name, p] : StoredParameters(model)) {
      for (const HfRows& piece : Pieces(family_, config_, name, *p)) {
        const SafetensorsEntry* entry = find(piece.name);
        if (name == "wte.weight") embedding = entry;
        const Shape shape = piece.ShapeOf(p->logical_shape());
        if (!entry) {
          missing += " " + piece.name;
        } else if (!FindNf4(piece, shape, find)) {
          CheckFits(*entry, shape);
        }
      }
    }
    for (const auto& [path, layer] : nn::QuantizedLayers(model)) {
      const Parameter& weight = layer->weight();
      for (const HfRows& piece : Pieces(family_, config_, path + ".weight", weight)) {
        if (!find(piece.name)) missing += " " + piece.name;
        FindNf4(piece, piece.ShapeOf(weight.logical_shape()), find);  // uses its scales
      }
    }
    if (!missing.empty()) {
      throw InputError(StrCat(set_.source, ": weights of this model are missing:", missing));
    }
    for (const auto& [name, size] : MissingBiases(family_, model)) {
      if (find(name)) CheckZero(*Find(name));
    }
    if (config_.tie_embeddings) {
      if (const SafetensorsEntry* head = find("lm_head.weight"))
        CheckTiedHead(family_, *head, *embedding);
    }
    std::string unknown;
    for (const auto& [name, stored] : set_.by_name) {
      if (!used.contains(name) && !IsBuffer(name)) unknown += " " + name;
    }
    if (!unknown.empty()) {
      throw InputError(
          StrCat(set_.source, ": this model has no parameters for these weights:", unknown));
    }
  }

  const HfFamily& family_;
  const GptConfig config_;
  const StoredTensors set_;
};

}  // namespace

bool IsOfAdapter(std::string_view parameter) {
  return parameter.find(".lora_A.") != parameter.npos ||
         parameter.find(".lora_B.") != parameter.npos;
}

std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> StoredParameters(const Gpt& model) {
  auto parameters = model.NamedParameters();
  std::erase_if(parameters, [](const auto& named) {
    return IsOfAdapter(named.first) || nn::IsQuantizedWeight(named.first);
  });
  return parameters;
}

Tensor HfRows::Of(Tensor whole) const {
  if (expert >= 0) whole = whole.Slice(0, expert, expert + 1).Squeeze(0);
  const Tensor rows = whole.Slice(0, begin, end);
  return transposed ? rows.Transpose(0, 1) : rows;
}

Shape HfRows::ShapeOf(Shape whole) const {
  if (expert >= 0) whole = {whole[1], whole[2]};
  whole[0] = end - begin;
  if (transposed) std::swap(whole[0], whole[1]);
  return whole;
}

std::vector<HfRows> HfRowsOf(const GptConfig& config, const std::string& name, const Parameter& p) {
  return Pieces(HfFamilyOf(config), config, name, p);
}

std::vector<SafetensorsItem> ToHfTensors(const Gpt& model) {
  return ToHfTensors(
      model, [](const std::string&, const Parameter& p) { return p.WholeOf(p.value().Detach()); });
}

std::vector<SafetensorsItem> ToHfTensors(const Gpt& model, const WeightSource& weight) {
  const HfFamily& family = HfFamilyOf(model.config());
  std::vector<SafetensorsItem> items;
  for (const auto& [name, p] : StoredParameters(model)) {
    for (const HfRows& piece : Pieces(family, model.config(), name, *p)) {
      items.push_back(SafetensorsItem::Of(
          piece.name, p->value().dtype(), piece.ShapeOf(p->logical_shape()),
          [weight, name = name, p = p, piece] { return piece.Of(weight(name, *p)); }));
    }
  }
  const DType dtype = model.Parameters().at(0)->value().dtype();
  for (const auto& [name, size] : MissingBiases(family, model)) {
    items.push_back(SafetensorsItem::Of(name, Tensor::Zeros({size}, dtype)));
  }
  return items;
}

void LoadHfWeights(Gpt& model, const std::string& path) {
  const HfWeights weights(model, path);
  for (const auto& [name, p] : StoredParameters(model)) {
    const Tensor value = p->value().Detach();
    if (p->layout().is_whole()) {
      weights.Read(name, *p, value);
    } else {
      const Tensor whole = Tensor::Empty(p->logical_shape(), value.dtype());
      weights.Read(name, *p, whole);
      value.CopyFrom(p->PartOf(whole));
    }
  }
  for (const auto& [path, layer] : nn::QuantizedLayers(model)) weights.Read(path, *layer);
}

WeightSource HfWeightSource(const Gpt& model, const std::string& path) {
  return [weights = std::make_shared<const HfWeights>(model, path)](const std::string& name,
                                                                    const Parameter& p) {
    const Tensor whole = Tensor::Empty(p.logical_shape(), p.value().dtype());
    weights->Read(name, p, whole);
    return whole;
  };
}

}  // namespace lockstep::models
