// Models as Hugging Face folders: model.safetensors and config.json. A model is written as the
// first family that has all of its parts (a file each beside this one; the table is in
// models/gpt/README.md), and transformers loads it. All other models have a format of our own, with
// model_type "lockstep" and the names of Gpt's parameters, which transformers does not know.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/safetensors_writer.h"
#include "models/gpt/gpt.h"

namespace lockstep::models {

// The model_type of a model's folder: "gpt2", "llama", ..., "lockstep".
std::string HfModelType(const GptConfig& config);
// Its family in words: "Llama", "Gemma 3"; "GPT" if it has none.
std::string HfTitle(const GptConfig& config);

// config.json for a model whose weights are of this dtype.
std::string ToHfConfig(const GptConfig& config, DType dtype = DType::kF32);
// The inverse, Resolved; also reads OpenAI's and Meta's own folders. InputErrors name `source` and
// the field; so is a feature that our models lack, since ignoring it would give wrong results.
GptConfig FromHfConfig(const std::string& json, const std::string& source);

// The model's weights, without adapters, under the names of its family. GPT-2: Conv1D weights as
// [in, out]; a model without biases gets zeros for them, since the format always has them. Llama:
// q, k and v, and gate and up, are separate; a tied head is left out. With experts, each expert's
// matrices are separate as well. If the model is sharded, all ranks produce the items together, in
// the same order.
std::vector<SafetensorsItem> ToHfTensors(const Gpt& model);
// The same with weights from elsewhere, of the model's shapes and dtypes: `weight` is called when
// an item is written, for the whole of a parameter.
using WeightSource = std::function<Tensor(const std::string& name, const Parameter&)>;
std::vector<SafetensorsItem> ToHfTensors(const Gpt& model, const WeightSource& weight);

// The tensor of the folder that holds the rows [begin, end) of a parameter, or all of a vector; of
// one expert's matrix, where those are stacked; [in, out] where it is transposed.
struct HfRows {
  std::string name;  // "model.layers.0.self_attn.k_proj.weight"
  int64_t begin = 0, end = 0;
  bool transposed = false;
  int64_t expert = -1;  // none

  // The tensor as a view of the parameter's, and its shape.
  Tensor Of(Tensor whole) const;
  Shape ShapeOf(Shape whole) const;
};
// The rows that make up a parameter of the model, named as it is in Gpt.
std::vector<HfRows> HfRowsOf(const GptConfig& config, const std::string& name, const Parameter& p);
// Whether a parameter belongs to an adapter (nn/lora); folders of models do not have these
// (gpt/peft).
bool IsOfAdapter(std::string_view parameter);
// The parameters that folders have as they are: neither those of adapters nor 4-bit weights.
std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> StoredParameters(const Gpt& model);

// Fills a folder that transformers loads: `config` (config.json), and the tensors, in this order,
// in model.safetensors; if they take more than `max_bytes`, in files of at most that size (or of
// one larger tensor), model-00001-of-0000n.safetensors and so on, with
// model.safetensors.index.json. IoError.
void WriteHfFolder(const std::string& folder, const std::string& config,
                   std::span<const SafetensorsItem> tensors, int64_t max_bytes);

// Copies the weights of a file or folder (model.safetensors, or shards with an index; or a GGUF
// file), of any floating dtype, into the model, but not adapters. Accepts names with and without
// the prefix of the bare model ("transformer.", "model."), and a tied lm_head.weight. InputError
// lists what is missing or has another shape, and refuses non-zero biases for a model without
// biases.
void LoadHfWeights(Gpt& model, const std::string& path);
// The same weights one at a time, for a model that need not be in memory: each is read when it is
// needed, and has the dtype of the model's parameter.
WeightSource HfWeightSource(const Gpt& model, const std::string& path);

// "path/config.json" read by FromHfConfig; `path` is a Hugging Face folder or a checkpoint of ours,
// or a GGUF file, whose keys say the same (gguf/gguf_reader.h). Throws InputError that says what to
// name instead if it is the folder of a run, or does not exist.
GptConfig ReadHfConfig(const std::string& path);

}  // namespace lockstep::models
