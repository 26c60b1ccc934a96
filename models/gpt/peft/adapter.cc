#include "models/gpt/peft/adapter.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/system/shell_word.h"
#include "models/gpt/gguf/gguf_reader.h"
#include "models/gpt/peft/layer_names.h"
#include "models/gpt/peft/write_adapter.h"
#include "nn/lora/add_lora.h"

namespace lockstep::models {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

[[noreturn]] void Fail(const SafetensorsEntry& entry, const std::string& what) {
  throw InputError(StrCat(*entry.source, ": ", Quoted(entry.name), " ", what));
}

// What a tensor of an adapter's file is: "lora_A" or "lora_B" of a module, or "" for one of
// modules_to_save, with its whole name.
struct Key {
  std::string module, matrix;
};

Key ParseKey(const SafetensorsEntry& entry) {
  std::string name = entry.name;
  if (!name.starts_with(kPrefix)) {
    Fail(entry, StrCat("does not begin with ", kPrefix, ", as the tensors of an adapter do"));
  }
  name = WithoutModel(name.substr(kPrefix.size()));
  for (const std::string matrix : {"lora_A", "lora_B"}) {
    const std::string end = StrCat(".", matrix, ".weight");
    if (name.ends_with(end)) return {name.substr(0, name.size() - end.size()), matrix};
  }
  if (name.find("lora_embedding_") != name.npos) {
    Fail(entry, "adapts an embedding, which Lockstep does not; modules_to_save may have it whole");
  }
  if (name.find(".lora_") != name.npos)
    Fail(entry, "belongs to a kind of adapters that Lockstep lacks");
  return {name, ""};
}

void CheckShape(const SafetensorsEntry& entry, const std::vector<int64_t>& expected,
                const std::string& of) {
  if (entry.shape == expected) return;
  const auto text = [](const std::vector<int64_t>& shape) {
    return StrCat(Shape(std::span<const int64_t>(shape)));
  };
  Fail(entry, StrCat("has shape ", text(entry.shape), ", but ", of, " needs ", text(expected),
                     ": the adapter belongs to another model"));
}

bool IsHead(const std::string& module) { return module == "lm_head"; }
bool IsEmbedding(const std::string& module) {
  return module.ends_with("embed_tokens") || module.ends_with("wte");
}

void RefuseIfTied(const Gpt& model, const SafetensorsEntry& entry, const std::string& module) {
  if (!model.config().tie_embeddings || (!IsHead(module) && !IsEmbedding(module))) return;
  Fail(entry, StrCat("changes ", module, ", but this model's head is tied to its token embedding, ",
                     "so that the change would be one of both: train an adapter without it"));
}

// `whole` has the logical shape, in f32.
void SetValue(const Parameter& p, const Tensor& whole) {
  const NoGrad no_grad;
  p.value().Detach().CopyFrom(p.PartOf(whole));
}

}  // namespace

PeftAdapter::PeftAdapter(std::string folder, PeftConfig config, StoredTensors tensors,
                         std::map<std::string, std::string> metadata)
    : folder_(std::move(folder)),
      config_(std::move(config)),
      tensors_(std::make_shared<const StoredTensors>(std::move(tensors))),
      metadata_(std::move(metadata)) {
  for (const auto& [name, tensor] : tensors_->by_name) {
    const auto [module, matrix] = ParseKey(tensor.entry);
    if (matrix.empty()) {
      saved_[module] = &tensor;
    } else {
      (matrix == "lora_A" ? matrices_[module].a : matrices_[module].b) = &tensor;
    }
  }
  for (const auto& [module, pair] : matrices_) {
    if (pair.a == nullptr) Fail(pair.b->entry, "is there without its lora_A");
    if (pair.b == nullptr) Fail(pair.a->entry, "is there without its lora_B");
  }
  if (matrices_.empty()) {
    throw InputError(StrCat(tensors_->source, ": holds no lora_A and lora_B of any module"));
  }
}

bool PeftAdapter::Exists(const std::string& folder) {
  return PathExists(JoinPath(folder, kAdapterConfig));
}

PeftAdapter PeftAdapter::Open(const std::string& folder) {
  if (!Exists(folder)) {
    throw InputError(StrCat(folder, ": holds no adapter: it has no ", kAdapterConfig));
  }
  const std::string tensors = JoinPath(folder, kAdapterTensors);
  if (!PathExists(tensors) && PathExists(JoinPath(folder, "adapter_model.bin"))) {
    throw InputError(StrCat(folder, ": has adapter_model.bin, which may run code when it is read; ",
                            "save the adapter as safetensors, PEFT's default"));
  }
  const std::string config = JoinPath(folder, kAdapterConfig);
  const SafetensorsFile file = SafetensorsFile::Open(tensors);
  StoredTensors stored{.source = file.source(), .by_name = {}};
  for (const SafetensorsEntry& entry : file.entries()) {
    // The handle keeps the file mapped.
    stored.by_name[entry.name] = {entry, [file, &entry] { return entry.ToTensor(); }};
  }
  return {folder, ParsePeftConfig(ReadFile(config), config), std::move(stored), file.metadata()};
}

PeftAdapter PeftAdapter::Open(const std::string& path, const GptConfig& base) {
  if (!GgufFile::Is(path)) return Open(path);
  auto [config, tensors] = GgufAdapterOf(GgufFile::Open(path), base);
  return {path, std::move(config), std::move(tensors)};
}

std::string PeftAdapter::Metadata(const char* entry) const {
  const auto it = metadata_.find(entry);
  return it == metadata_.end() ? "" : it->second;
}

std::string PeftAdapter::base_hash() const { return Metadata(kBaseHashEntry); }

std::string PeftAdapter::base_kind() const {
  const std::string kind = Metadata(kBaseKindEntry);
  if (kind.empty() || kind == "nf4" || kind == "nf4_single") return kind;
  throw InputError(StrCat(tensors_->source, ": the entry ", kBaseKindEntry, " of its metadata is ",
                          Quoted(kind), "; this program knows \"nf4\" and \"nf4_single\""));
}

std::pair<Tensor, Tensor> PeftAdapter::Matrices(const std::string& module) const {
  const auto it = matrices_.find(WithoutModel(module));
  if (it == matrices_.end()) return {};
  return {it->second.a->read(), it->second.b->read()};
}

Tensor PeftAdapter::Saved(const std::string& module, const std::string& kind) const {
  const auto it = saved_.find(StrCat(WithoutModel(module), ".", kind));
  return it == saved_.end() ? Tensor() : it->second->read();
}

void PeftAdapter::CheckMatrices(const std::string& module, const Pair& matrices, int64_t rows,
                                int64_t columns) const {
  const int64_t rank = config_.RankOf(module);
  const std::string of = StrCat(module, " with rank ", rank);
  CheckShape(matrices.a->entry, {rank, columns}, of);
  CheckShape(matrices.b->entry, {rows, rank}, of);
  if (rank > std::min(rows, columns)) {
    Fail(matrices.a->entry,
         StrCat("has rank ", rank, ", above that of the matrix, [", rows, ", ", columns, "]"));
  }
  // PEFT's name of it, which lacks "model." where the adapter was trained on the bare model.
  const std::string_view name = matrices.a->entry.name;
  const size_t end = name.rfind(".lora_A.weight");
  if (!config_.Targets(std::string(name.substr(kPrefix.size(), end - kPrefix.size())))) {
    Fail(matrices.a->entry,
         StrCat("is there, but \"target_modules\" of ", kAdapterConfig,
                " has no such module, or its \"exclude_modules\", \"modules_to_save\" or "
                "\"layers_to_transform\" exclude it: the files do not belong together"));
  }
}

void PeftAdapter::CheckNotTargeted(const std::string& module) const {
  const bool bare = std::ranges::none_of(matrices_, [&](const auto& one) {
    return one.second.a->entry.name.starts_with(
        StrCat(kPrefix, module.substr(0, module.find('.') + 1)));
  });
  if (!config_.Targets(bare ? WithoutModel(module) : module)) return;
  throw InputError(StrCat(tensors_->source, ": there are no matrices of ", module,
                          ", which \"target_modules\" of ", kAdapterConfig,
                          " names: the file is incomplete, or the files do not belong together"));
}

void PeftAdapter::CheckScale(const std::string& module, double scale) const {
  const double own = config_.ScaleOf(module);
  if (std::abs(scale - own) <= 1e-9 * std::abs(own)) return;
  const bool patterns = !config_.rank_pattern.empty() || !config_.alpha_pattern.empty();
  const std::string options =
      patterns
          ? ""
          : StrCat("--lora.alpha=", config_.alpha,
                   " --lora.rank_stabilized=", config_.rank_stabilized ? "true" : "false", ", or ");
  throw InputError(StrCat(JoinPath(folder_, kAdapterConfig), ": what the adapter of ", module,
                          " adds is multiplied by ", own,
                          " (lora_alpha and r), but the model that ",
                          "takes its values multiplies it by ", scale, ": use ", options,
                          "--init_from=WEIGHTS --lora.init_from=", ShellWord(folder_),
                          ", which takes ranks and alphas from the file"));
}

void PeftAdapter::RefuseModule(const Gpt& model, const std::string& module) const {
  const SafetensorsEntry& entry = matrices_.at(module).a->entry;
  RefuseIfTied(model, entry, module);
  if (module == "lm_head") {
    Fail(entry, "adapts the head, which Lockstep does not; modules_to_save may have it whole");
  }
  Fail(entry, StrCat("adapts a module that this model (", HfTitle(model.config()), ", ",
                     model.config().n_layer, " layers) does not have: the adapter belongs to ",
                     "another model. What can be adapted are the layers' ",
                     AdaptableNames(AdaptableLayers(model))));
}

void PeftAdapter::AddTo(Gpt& model, double dropout) const {
  std::vector<nn::LoraTarget> targets;
  std::set<std::string> known;
  const std::vector<AdaptableLayer> layers = AdaptableLayers(model);
  // Experts are no modules for a PEFT whose transformers stacks them: its files have none of them.
  const bool has_experts = std::ranges::any_of(layers, [&](const AdaptableLayer& layer) {
    return layer.expert >= 0 && std::ranges::any_of(layer.parts, [&](const auto& part) {
             return matrices_.contains(WithoutModel(part.module));
           });
  });
  for (const AdaptableLayer& layer : layers) {
    targets.push_back({.path = layer.path});
    nn::LoraTarget& target = targets.back();
    for (const auto& [module, slice, rows] : layer.parts) {
      target.slices.push_back({.name = slice, .rows = rows});
      const std::string name = WithoutModel(module);
      known.insert(name);
      const auto it = matrices_.find(name);
      if (it == matrices_.end()) {
        if (layer.expert < 0 || has_experts) CheckNotTargeted(module);
        continue;
      }
      CheckMatrices(module, it->second, rows, layer.in_features);
      target.slices.back().rank = config_.RankOf(module);
      target.slices.back().scale = config_.ScaleOf(module);
    }
  }
  targets = JoinExperts(layers, std::move(targets), [&](const std::string& why) {
    throw InputError(StrCat(tensors_->source, ": ", why));
  });
  for (const auto& [module, pair] : matrices_) {
    if (!known.contains(module)) RefuseModule(model, module);
  }
  nn::AddLora(model, targets,
              {.rank = config_.rank,
               .alpha = config_.alpha,
               .dropout = dropout,
               .rank_stabilized = config_.rank_stabilized});
  MarkSaved(model);
}

// PEFT also writes embedding and head, tied or not, without naming them in modules_to_save, where
// resize_token_embeddings has changed the vocabulary.
bool PeftAdapter::IsOfResized(const std::string& module) const {
  return (IsHead(module) || IsEmbedding(module)) && !config_.Saves(module);
}

void PeftAdapter::CheckVocabulary(const Gpt& model, const SafetensorsEntry& entry) const {
  const int64_t rows = entry.shape.empty() ? 0 : entry.shape[0];
  if (rows == model.config().vocab_size) return;
  Fail(entry,
       StrCat("has ", rows, " rows, but the model's vocabulary has ", model.config().vocab_size,
              " tokens: PEFT writes it if the model's ",
              "vocabulary was changed before training (resize_token_embeddings). Change ",
              "that of the weights in the same way, and save them (save_pretrained), for use with ",
              "this adapter"));
}

void PeftAdapter::MarkSaved(Gpt& model) const {
  std::set<std::string> left;
  for (const auto& [name, tensor] : saved_) left.insert(name);
  const auto head = saved_.find("lm_head.weight");
  if (model.config().tie_embeddings && head != saved_.end() && IsOfResized("lm_head")) {
    const SafetensorsEntry& own = head->second->entry;
    for (const auto& [name, tensor] : saved_) {
      const SafetensorsEntry& entry = tensor->entry;
      const bool same = entry.dtype() == own.dtype() && entry.shape == own.shape &&
                        std::ranges::equal(entry.bytes, own.bytes);
      if (same && IsEmbedding(name.substr(0, name.rfind('.')))) left.erase(head->first);
    }
  }
  for (const auto& [name, p] : StoredParameters(model)) {
    const auto parts = ModuleRowsOf(model.config(), name, *p);
    const SafetensorsEntry* last = nullptr;
    size_t found = 0;
    for (const auto& [rows, module, kind] : parts) {
      const auto it = saved_.find(StrCat(WithoutModel(module), ".", kind));
      if (it == saved_.end()) {
        if (!config_.Saves(module)) continue;
        throw InputError(StrCat(tensors_->source, ": there is no ", module, ".", kind,
                                ", though \"modules_to_save\" of ", kAdapterConfig,
                                " names that module: the file is incomplete"));
      }
      last = &it->second->entry;
      const bool resized = IsOfResized(module);
      if (resized) CheckVocabulary(model, *last);
      if (!resized) RefuseIfTied(model, *last, module);
      if (!resized && !config_.Saves(module)) {
        Fail(*last, StrCat("is there, but \"modules_to_save\" of ", kAdapterConfig,
                           " has no such module: the files do not belong together"));
      }
      const Shape shape = rows.ShapeOf(p->logical_shape());
      CheckShape(*last, {shape.begin(), shape.end()}, module);
      left.erase(it->first);
      ++found;
    }
    if (found > 0 && found < parts.size()) {
      Fail(*last, StrCat("is saved whole, but other rows of the same matrix of Lockstep's (", name,
                         ") are not: list all of them in modules_to_save"));
    }
    if (found > 0) p->SetTrainable(true);
  }
  if (left.empty()) return;
  const SafetensorsEntry& entry = saved_.at(*left.begin())->entry;
  RefuseIfTied(model, entry, left.begin()->substr(0, left.begin()->rfind('.')));
  Fail(entry, "is of a module that this model does not have: the adapter belongs to another model");
}

void PeftAdapter::LoadInto(Gpt& model) const {
  std::map<std::shared_ptr<Parameter>, Tensor> wholes;  // of adapters
  std::map<std::string, nn::LoraAdapter*> adapters;
  for (nn::LoraAdapter* adapter : nn::LoraAdapters(model)) {
    adapters[adapter->adapter_path()] = adapter;
  }
  for (const AdaptableLayer& layer : AdaptableLayers(model)) {
    const auto at = adapters.find(layer.path);
    nn::LoraAdapter* adapter = at == adapters.end() ? nullptr : at->second;
    const auto of_layer = [&](const std::shared_ptr<Parameter>& p) {
      Tensor& whole = wholes[p];
      if (!whole.defined()) whole = Tensor::Empty(p->logical_shape(), DType::kF32);
      return layer.Of(whole);
    };
    for (size_t i = 0; i < layer.parts.size(); ++i) {
      const auto& [module, slice, rows] = layer.parts[i];
      const auto it = matrices_.find(WithoutModel(module));
      const int64_t rank = adapter ? adapter->slices().at(i).rank : 0;
      if (rank == 0 && it == matrices_.end()) continue;
      if (rank == 0)
        Fail(it->second.a->entry,
             "has no adapter in the model that takes its values: let lora.targets name its matrix, "
             "too, or take targets from the file by lora.init_from");
      if (it == matrices_.end()) {
        throw InputError(StrCat(tensors_->source, ": has no adapter of ", module,
                                ", unlike the model that takes its values: lora.targets names more "
                                "than it has; lora.init_from takes targets from the file"));
      }
      const auto& [own_a, own_b] = it->second;
      CheckShape(own_a->entry, {rank, layer.in_features}, StrCat(module, " with rank ", rank));
      CheckShape(own_b->entry, {rows, rank}, StrCat(module, " with rank ", rank));
      CheckScale(module, adapter->slices()[i].scale);
      const int64_t first = adapter->first_rank(i);
      of_layer(adapter->a()).Slice(0, first, first + rank).CopyFrom(own_a->read());
      of_layer(adapter->b(i)).CopyFrom(own_b->read());
    }
  }
  for (const auto& [p, whole] : wholes) SetValue(*p, whole);
  for (const auto& [name, p] : StoredParameters(model)) {
    if (!p->trainable()) continue;
    const Tensor whole = Tensor::Empty(p->logical_shape(), DType::kF32);
    for (const auto& [rows, module, kind] : ModuleRowsOf(model.config(), name, *p)) {
      const std::string key = StrCat(WithoutModel(module), ".", kind);
      const auto it = saved_.find(key);
      if (it == saved_.end()) {
        throw InputError(StrCat(tensors_->source, ": lacks ", kPrefix, module, ".", kind));
      }
      rows.Of(whole).CopyFrom(it->second->read());
    }
    SetValue(*p, whole);
  }
}

}  // namespace lockstep::models
