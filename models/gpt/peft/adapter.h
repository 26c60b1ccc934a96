// Low-rank adapters of a Gpt as PEFT's files: a folder with adapter_model.safetensors and
// adapter_config.json, which PeftModel.from_pretrained loads.
//
//   base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight  [rank, in]
//   base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight  [out, rank]
//   base_model.model.model.layers.0.block_sparse_moe.experts.3.w1.lora_A.weight  of each expert
//   base_model.model.lm_head.weight                                 of modules_to_save
//
//   const PeftAdapter adapter = PeftAdapter::Open("chat");
//   adapter.AddTo(gpt);
//   gpt.Materialize(device, seed);
//   LoadWeights(base, gpt);
//   adapter.LoadInto(gpt);
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "models/gpt/gpt.h"
#include "models/gpt/hf/stored_tensors.h"
#include "models/gpt/peft/adapter_config.h"

namespace lockstep::models {

inline constexpr char kAdapterConfig[] = "adapter_config.json";
inline constexpr char kAdapterTensors[] = "adapter_model.safetensors";

// An adapter in a folder, or in a GGUF file, as llama.cpp reads them. Copies share the mapped file.
class PeftAdapter {
 public:
  // Whether the folder holds one.
  static bool Exists(const std::string& folder);
  // InputError for an adapter of a kind that Lockstep lacks (ParsePeftConfig), and for tensors that
  // do not belong to an adapter; IoError for missing files.
  static PeftAdapter Open(const std::string& folder);
  // The same, and GGUF files (GgufAdapterOf): `base` is the model that the adapter belongs to,
  // whose own adapters do not matter.
  static PeftAdapter Open(const std::string& path, const GptConfig& base);

  const std::string& folder() const { return folder_; }  // or the file
  const PeftConfig& config() const { return config_; }
  // WriteAdapter's base_hash; "" if another program wrote the files.
  std::string base_hash() const;
  // "nf4" or "nf4_single" if Lockstep trained it on weights in 4 bits, else "".
  std::string base_kind() const;

  // A [rank, in] and B [out, rank] of a module, as stored; undefined if it has no adapter.
  std::pair<Tensor, Tensor> Matrices(const std::string& module) const;
  // The "weight" or "bias" that the adapter has as a whole, as stored; undefined if it has none.
  Tensor Saved(const std::string& module, const std::string& kind) const;

  // Puts its layers into the model (nn::AddLora), without their values, and freezes all else but
  // modules_to_save, and an embedding and head that the adapter has because the vocabulary was
  // changed before it was trained. Call it before the model is parallelised. `dropout` is the one
  // in training. InputError says which tensor does not fit the model, and why, and
  // which expert has another rank, or no adapter, unlike the others of its layer.
  void AddTo(Gpt& model, double dropout = 0) const;
  // Copies its values into the model's adapters, and into modules_to_save; in a sharded model a
  // rank takes its part. InputError if the model's adapters differ from this one's, or scale what
  // they add differently.
  void LoadInto(Gpt& model) const;

 private:
  // A and B of a module.
  struct Pair {
    const StoredTensor *a = nullptr, *b = nullptr;
  };

  PeftAdapter(std::string folder, PeftConfig config, StoredTensors tensors,
              std::map<std::string, std::string> metadata = {});
  void CheckMatrices(const std::string& module, const Pair& matrices, int64_t rows,
                     int64_t columns) const;
  std::string Metadata(const char* entry) const;
  [[noreturn]] void RefuseModule(const Gpt& model, const std::string& module) const;
  bool IsOfResized(const std::string& module) const;
  void CheckVocabulary(const Gpt& model, const SafetensorsEntry& entry) const;
  void MarkSaved(Gpt& model) const;
  // `scale`: that of the model's adapter of the module.
  void CheckScale(const std::string& module, double scale) const;
  // InputError if the configuration names the module, which has no matrices.
  void CheckNotTargeted(const std::string& module) const;

  std::string folder_;
  PeftConfig config_;
  std::shared_ptr<const StoredTensors> tensors_;
  std::map<std::string, std::string> metadata_;  // of a safetensors file
  // By the module's name WithoutModel; by that of the tensor, "lm_head.weight".
  std::map<std::string, Pair> matrices_;
  std::map<std::string, const StoredTensor*> saved_;
};

}  // namespace lockstep::models
