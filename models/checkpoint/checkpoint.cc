#include "models/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "core/system/shell_word.h"
#include "dist/mesh_parts.h"
#include "models/checkpoint/adapter_base.h"
#include "models/checkpoint/fetched_checkpoint.h"
#include "models/gpt/gguf/gguf_reader.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/gpt/peft/write_adapter.h"
#include "nn/lora/lora.h"
#include "nn/lora/quantized_linear.h"

namespace lockstep::models {
namespace {

bool HasAdapters(const Gpt& model) { return !nn::LoraParameters(model).empty(); }

// adapter_config.json.
std::string AdapterConfig(const Gpt& model, const TrainerState& state) {
  const LoraOptions& lora = model.config().lora;
  PeftConfig config = PeftConfigOf(const_cast<Gpt&>(model), lora.rank_stabilized);
  config.base = state.base;
  config.dropout = lora.dropout;
  return ToJson(config);
}

// Collects the tensors of a checkpoint, for the files of one rank.
class Collector {
 public:
  Collector(const Gpt& model, const CheckpointShare& share, HostSnapshot* snapshot)
      : share_(share), snapshot_(snapshot), parts_(dist::MeshParts::Of(model.Parameters())) {}

  // In this rank's files of the two kinds, and, on rank 0, the index.
  void AddParts(const Gpt& model, const optim::Optimizer& optimizer, CheckpointFiles* files) const {
    std::map<std::string, std::vector<PartTensor>> index = {{"model", {}}, {"optimizer", {}}};
    const auto add = [&](const std::string& kind, const std::string& name, const Parameter& p,
                         const Tensor& part, std::vector<SafetensorsItem>& items) {
      index[kind].push_back({name, part.dtype(), p.logical_shape()});
      AddPart(
          name, p, part, CopyOf(p), [this](const Tensor& x) { return Keep(x); }, &items);
    };
    std::vector<SafetensorsItem> weights, state;
    for (const auto& [name, p] : model.NamedParameters()) {
      add("model", name, *p, p->value(), weights);
    }
    optimizer.ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
      add("optimizer", name, p, part, state);
    });
    files->tensors = {{PartFile("model", share_.rank, share_.ranks), std::move(weights)},
                      {PartFile("optimizer", share_.rank, share_.ranks), std::move(state)}};
    if (share_.rank == 0) files->texts.emplace_back(kPartsIndex, PartsIndex(share_.ranks, index));
  }

  // All of it on rank 0; with adapters, only what is trained, in its f32 originals where the
  // optimizer has some, as PEFT keeps adapters in f32 with 16-bit weights.
  void AddWhole(const Gpt& model, const optim::Optimizer& optimizer, CheckpointFiles* files) const {
    const bool adapters = HasAdapters(model);
    std::map<const Parameter*, Tensor> weights;
    std::vector<SafetensorsItem> state;
    optimizer.ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
      const Tensor whole = KeepWhole(p, part);
      if (adapters && name == p.name() + ".master") weights[&p] = whole;
      if (whole.defined()) state.push_back(SafetensorsItem::Of(name, whole));
    });
    for (const auto& p : model.Parameters()) {
      const bool saved = p->trainable() || !adapters;
      if (saved && !weights.contains(p.get())) weights[p.get()] = KeepWhole(*p, p->value());
    }
    if (share_.rank != 0) return;
    // Each item has a copy of this function.
    const auto kept =
        std::make_shared<const std::map<const Parameter*, Tensor>>(std::move(weights));
    const auto weight = [kept](const std::string&, const Parameter& p) { return kept->at(&p); };
    const auto dtype = [kept](const Parameter& p) { return kept->at(&p).dtype(); };
    files->tensors = {{adapters ? kAdapterTensors : "model.safetensors",
                       adapters ? ToPeftTensors(model, weight, dtype) : ToHfTensors(model, weight)},
                      {"optimizer.safetensors", std::move(state)}};
  }

  // The whole state of an optimizer, which other ranks do not have.
  void AddState(const optim::Optimizer& optimizer, const std::string& kind,
                CheckpointFiles* files) const {
    std::vector<SafetensorsItem> items;
    for (const auto& [name, tensor] : optimizer.NamedState()) {
      items.push_back(SafetensorsItem::Of(name, Keep(tensor)));
    }
    files->tensors.emplace_back(kind + ".safetensors", std::move(items));
  }

  // On rank 0.
  void AddBuffers(const Gpt& model, CheckpointFiles* files) const {
    std::vector<SafetensorsItem> items;
    for (const auto& [name, buffer] : model.NamedBuffers()) {
      items.push_back(SafetensorsItem::Of(name, Keep(buffer)));
    }
    if (!items.empty()) files->tensors.emplace_back(kBuffersFile, std::move(items));
  }

 private:
  // Also of parameters that are whole on all ranks along an axis that divides others.
  PartCopy CopyOf(const Parameter& p) const {
    const auto [index, count] = parts_->CopyOf(p);
    return {share_.copy.index * count + index, share_.copy.count * count};
  }
  Tensor Keep(const Tensor& x) const { return snapshot_ ? snapshot_->Add(x) : x; }

  // Undefined on other ranks than 0.
  Tensor KeepWhole(const Parameter& p, const Tensor& part) const {
    const Tensor whole = p.WholeOf(part.Detach());
    if (share_.rank != 0) return {};
    const Tensor kept = Keep(whole);
    // What was brought together would otherwise stay on the device.
    return p.layout().is_whole() ? kept : kept.To(kCpu);
  }

  const CheckpointShare& share_;
  HostSnapshot* const snapshot_;
  const std::shared_ptr<const dist::MeshParts> parts_;
};

}  // namespace

std::string WorkerFile(const std::string& kind, int64_t rank) {
  return rank == 0 ? kind : StrCat(kind, ".worker-", rank);
}

CheckpointFiles CollectCheckpoint(const TrainerState& state, const Gpt& model,
                                  const optim::Optimizer& optimizer,
                                  const data::Tokenizer* tokenizer, const CheckpointShare& share,
                                  HostSnapshot* snapshot) {
  CheckpointFiles files{.step = state.step};
  const Collector collector(model, share, snapshot);
  share.parts ? collector.AddParts(model, optimizer, &files)
              : collector.AddWhole(model, optimizer, &files);
  if (share.outer != nullptr && share.rank != 0) {
    collector.AddState(optimizer, WorkerFile("optimizer", share.rank), &files);
    files.texts.emplace_back(WorkerFile("trainer_state", share.rank) + ".json", ToJson(state));
  }
  if (share.rank != 0) return files;
  if (share.outer != nullptr) collector.AddState(*share.outer, kOuterFile, &files);
  collector.AddBuffers(model, &files);
  files.texts.emplace_back("config.json",
                           ToHfConfig(model.config(), model.Parameters().at(0)->value().dtype()));
  if (HasAdapters(model)) {
    files.texts.emplace_back(kAdapterConfig, AdapterConfig(model, state));
    files.metadata[kBaseHashEntry] = state.base_hash;
    const LoraOptions& lora = model.config().lora;
    if (lora.quantizes()) files.metadata[kBaseKindEntry] = lora.base;
  }
  if (tokenizer) files.texts.emplace_back("tokenizer.json", tokenizer->ToJson());
  if (tokenizer && !tokenizer->ConfigJson().empty()) {
    files.texts.emplace_back("tokenizer_config.json", tokenizer->ConfigJson());
  }
  files.texts.emplace_back("trainer_state.json", ToJson(state));
  return files;
}

namespace {

// What the checkpoint has for each of the model's buffers.
NamedTensors ReadBuffers(const std::string& path, const Gpt& model) {
  const NamedTensors buffers = model.NamedBuffers();
  if (buffers.empty()) return {};
  NamedTensors all;
  const std::string file = JoinPath(path, kBuffersFile);
  if (!PathExists(file)) {
    throw InputError(StrCat(file, " is missing: the model has state in addition to its weights ('",
                            buffers[0].first, "'), which every checkpoint of it holds"));
  }
  const SafetensorsSet set = SafetensorsSet::Open(file);
  for (const auto& [name, buffer] : buffers) {
    const Tensor stored = set.Get(name).ToTensor();
    if (!(stored.shape() == buffer.shape())) {
      throw InputError(StrCat(file, ": '", name, "' has shape ", stored.shape(),
                              ", but this model needs ", buffer.shape()));
    }
    all.emplace_back(name, stored);
  }
  return all;
}

// Each of the layer's matrices is quantised by itself.
void SetWeight(const Tensor& weight, nn::QuantizedLayer& layer) {
  int64_t begin = 0;
  for (size_t i = 0; i < layer.num_matrices(); ++i) {
    const int64_t end = begin + layer.shape(i)[0];
    layer.SetMatrix(i, ops::Nf4Quantize(weight.Slice(0, begin, end), layer.double_quantized()));
    begin = end;
  }
}

void LoadParameters(const std::string& path, Gpt& model) {
  if (!TensorParts::Exist(path)) return LoadHfWeights(model, path);
  const TensorParts parts = TensorParts::Open(path, "model");
  const auto parameters = StoredParameters(model);
  for (const auto& [name, p] : parameters) {
    p->value().Detach().CopyFrom(parts.ReadPart(name, *p));
  }
  const auto quantized = nn::QuantizedLayers(model);
  for (const auto& [name, layer] : quantized) {
    SetWeight(parts.ReadPart(name + ".weight", layer->weight()), *layer);
  }
  if (parts.names().size() != parameters.size() + quantized.size()) {
    throw InputError(StrCat(JoinPath(path, kPartsIndex), ": has ", parts.names().size(),
                            " tensors of the model, whose config.json makes ", parameters.size(),
                            ": they do not belong together"));
  }
}

}  // namespace

std::string CheckpointOf(const std::string& path) {
  if (IsRemote(path)) return FetchCheckpoint(path, /*best=*/true);
  if (PathExists(JoinPath(path, "config.json"))) return path;  // a checkpoint itself
  for (const char* name : {"best", "latest"}) {
    if (std::string link = JoinPath(path, name); PathExists(link)) return link;
  }
  if (IsDirectory(JoinPath(path, "checkpoints"))) {  // where a run had its mirror, without links
    const CheckpointStore store(path);
    if (const auto best = store.Best()) return best->path;
    if (const auto all = store.List(); !all.empty()) return all[0].path;
  }
  if (PathExists(JoinPath(path, "config.toml"))) {
    throw InputError(StrCat(path,
                            ": this run has no checkpoint yet: its first one comes at its end, ",
                            "or after checkpoint.every steps"));
  }
  const std::string latest = JoinPath(ParentPath(path), "latest");
  if (BaseName(path) == "best" && !PathExists(path) && PathExists(latest)) {
    throw InputError(StrCat(path, ": the run has no best checkpoint, which takes validation data ",
                            "(data.val_fraction) and checkpoint.keep_best: use ", latest));
  }
  return path;
}

HeldCheckpoint HoldCheckpoint(const std::string& path) {
  return HeldCheckpoint(CheckpointOf(path));
}

std::string WeightsOf(const std::string& path) {
  const auto has = [&](const char* name) { return PathExists(JoinPath(path, name)); };
  const bool whole = has("model.safetensors") || has("model.safetensors.index.json");
  if (whole || !PeftAdapter::Exists(path)) return path;
  const std::string file = JoinPath(path, kAdapterConfig);
  const std::string base = ParsePeftConfig(ReadFile(file), file).base;
  if (base.empty() || !PathExists(base)) {
    throw InputError(StrCat(path, " has adapters of the weights of '", base,
                            "', and there is no such folder: download or restore them there, or ",
                            "link that path to where they are now (ln -s); sample_gpt also takes ",
                            "--checkpoint=WEIGHTS --adapter=", ShellWord(path)));
  }
  return base;
}

void VerifyModel(const std::string& path, bool averages) {
  const std::string list = JoinPath(path, kManifestName);
  if (!PathExists(list)) return;
  CheckpointManifest manifest = ParseManifest(ReadFile(list, int64_t{64} << 20), list);
  std::erase_if(manifest.files, [averages](const auto& f) {
    const bool of_optimizer = f.name.starts_with("optimizer");
    return (of_optimizer && !averages) || !f.name.ends_with(".safetensors");
  });
  CheckFiles(path, manifest, /*hashes=*/true);
}

void VerifyModelAndBase(const std::string& path) {
  VerifyModel(path);
  if (const std::string weights = WeightsOf(path); weights != path) VerifyModel(weights);
}

void AddAdapters(const std::string& path, Gpt& model) {
  if (PeftAdapter::Exists(path)) PeftAdapter::Open(path).AddTo(model);
}

void LoadWeights(const std::string& adapted, Gpt& model) {
  const std::string path = WeightsOf(adapted);
  const bool adapters = PeftAdapter::Exists(adapted);
  if (adapters && !HasAdapters(model)) {
    throw InputError(
        StrCat(adapted, " has adapters, with which a model cannot be trained as a ",
               "whole: continue with the same lora.rank and lora.targets, or merge them first"));
  }
  const NamedTensors buffers = ReadBuffers(path, model);
  LoadParameters(path, model);
  if (adapters) {
    const PeftAdapter adapter = PeftAdapter::Open(adapted);
    CheckBase(adapter, path);
    adapter.LoadInto(model);
  }
  const NamedTensors own = model.NamedBuffers();
  for (size_t i = 0; i < own.size(); ++i) own[i].second.CopyFrom(buffers[i].second);
}

namespace {

constexpr std::string_view kAverage = ".ema";

// Of the optimizer's state, some of which are averages.
TensorParts OpenAverages(const std::string& path) {
  const auto is_average = [](const std::string& name) { return name.ends_with(kAverage); };
  if (TensorParts::Exist(path) || PathExists(JoinPath(path, "optimizer.safetensors"))) {
    TensorParts state = TensorParts::Open(path, "optimizer");
    if (std::ranges::any_of(state.names(), is_average)) return state;
  }
  throw InputError(StrCat(path, " has no averages of its weights: checkpoints of runs with ",
                          "optim.ema have them; leave --weights=ema out"));
}

}  // namespace

void LoadAverages(const std::string& path, Gpt& model) {
  const TensorParts state = OpenAverages(path);
  const auto named = model.NamedParameters();
  const std::map<std::string, std::shared_ptr<Parameter>> parameters(named.begin(), named.end());
  for (const std::string& name : state.names()) {
    if (!name.ends_with(kAverage)) continue;
    const auto of = parameters.find(name.substr(0, name.size() - kAverage.size()));
    if (of == parameters.end()) {
      throw InputError(StrCat(path, ": the model has no parameter for the average '", name,
                              "': with --base=model its matrices are not quantised"));
    }
    of->second->value().Detach().CopyFrom(state.ReadPart(name, *of->second));
  }
}

WeightSource AveragesOr(const WeightSource& weights, const std::string& path) {
  return [weights, state = OpenAverages(path)](const std::string& name, const Parameter& p) {
    const std::string average = StrCat(name, kAverage);
    return state.Has(average) ? state.ReadPart(average, p) : weights(name, p);
  };
}

void LoadOptimizerState(const std::string& path, optim::Optimizer& optimizer,
                        const std::string& kind) {
  const TensorParts parts = TensorParts::Open(path, kind);
  std::map<std::string, const Parameter*> known;
  optimizer.ForEachState(
      [&](const std::string& name, const Parameter& p, const Tensor&) { known[name] = &p; });
  NamedTensors state;
  for (const std::string& name : parts.names()) {
    const auto it = known.find(name);
    state.emplace_back(name, it == known.end() ? Tensor() : parts.ReadPart(name, *it->second));
  }
  try {
    optimizer.LoadState(state);
  } catch (const InputError& e) {
    throw InputError(StrCat(path, ": ", e.what(),
                            ". A run with other optim.* options or another train.precision begins "
                            "anew from these weights: --init_from=",
                            ShellWord(path), " with another out_dir"));
  }
}

std::unique_ptr<data::Tokenizer> ReadTokenizer(const std::string& path) {
  const std::string folder = data::HasTokenizer(path) ? path : WeightsOf(path);
  if (GgufFile::Is(folder)) return TokenizerOf(GgufFile::Open(folder));
  return data::HasTokenizer(folder) ? data::LoadTokenizer(folder) : nullptr;
}

}  // namespace lockstep::models
