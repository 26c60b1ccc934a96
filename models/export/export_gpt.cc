#include "models/export/export_gpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/conversations/conversation_encoder.h"
#include "data/conversations/model_template.h"
#include "data/tokenizer/split_pattern.h"
#include "models/checkpoint/adapter_base.h"
#include "models/checkpoint/checkpoint.h"
#include "models/export/gguf_adapter.h"
#include "models/export/gguf_model.h"
#include "models/export/gguf_tokenizer.h"
#include "models/export/stored_model.h"
#include "models/gpt/hf/generation_config.h"
#include "models/gpt/peft/merged_weights.h"
#include "models/report/format.h"

namespace lockstep::models {
namespace {

// What files call an element type; Q8_0 is only in GGUF.
struct ExportType {
  std::string_view name;
  GgufType gguf;
  std::optional<DType> dtype;
};
constexpr ExportType kTypes[] = {{"f32", GgufType::kF32, DType::kF32},
                                 {"f16", GgufType::kF16, DType::kF16},
                                 {"bf16", GgufType::kBF16, DType::kBF16},
                                 {"q8_0", GgufType::kQ8_0, std::nullopt}};

const ExportType& TypeOf(const std::string& name, DType stored) {
  for (const ExportType& type : kTypes) {
    if (name == "auto" ? type.dtype == stored : name == type.name) return type;
  }
  return kTypes[0];  // f64 and the 8-bit types
}

// The tokenizer and where it is, for messages.
struct ExportTokenizer {
  std::shared_ptr<const data::Tokenizer> tokenizer;  // null: none
  std::string origin;
  data::NamedTemplates chat_templates;
  std::optional<int32_t> end_of_answer;  // by this template
};

// The token that ends an answer in the folder's chat template, or if that is "" in the tokenizer's
// own; nullopt, with a note on stderr, if
// the template does not show one.
std::optional<int32_t> EndOfAnswer(const std::string& folder,
                                   const std::shared_ptr<const data::Tokenizer>& tokenizer) {
  try {
    const data::ModelTemplate with = data::LoadModelTemplate(folder, {}, tokenizer);
    return data::ConversationEncoder(with.chat_template, with.tokenizer).EndOfAnswer();
  } catch (const InputError& e) {
    std::fprintf(stderr,
                 "export_gpt: note: the chat template does not show which token ends an answer, so "
                 "only the tokenizer's eos ends it: %s\n",
                 e.what());
    return std::nullopt;
  }
}

ExportTokenizer FindTokenizer(const ExportConfig& c, const StoredModel& stored) {
  ExportTokenizer found;
  std::string with_template;
  std::vector<std::string> places = {stored.folder, stored.weights_folder};
  if (!c.tokenizer.empty()) {
    found.origin = c.tokenizer;
    found.tokenizer = data::MakeTokenizer(c.tokenizer, "");
    places.insert(places.begin(), IsDirectory(c.tokenizer) ? c.tokenizer : ParentPath(c.tokenizer));
  }
  for (const std::string& folder : places) {
    if (found.tokenizer == nullptr) {
      found.origin = folder;
      found.tokenizer = ReadTokenizer(folder);
    }
    if (with_template.empty() && data::HasChatTemplate(folder)) with_template = folder;
  }
  if (with_template.empty() && found.tokenizer != nullptr) {  // GGUF's has them itself
    const std::string config = found.tokenizer->ConfigJson();
    if (!config.empty()) found.chat_templates = data::TemplatesIn(config, found.origin);
    if (!found.chat_templates.empty()) found.end_of_answer = EndOfAnswer("", found.tokenizer);
  }
  if (with_template.empty()) return found;
  found.chat_templates = data::FindTemplates(with_template);
  if (found.tokenizer != nullptr) found.end_of_answer = EndOfAnswer(with_template, found.tokenizer);
  return found;
}

// For transformers, of a tokenizer that had none.
std::string TokenizerConfig(const data::Tokenizer& tokenizer) {
  const Json json = ParseJson(tokenizer.ToJson(), "tokenizer.json");
  OrderedJson j = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  const data::SpecialIds ids = tokenizer.special_ids();
  const auto name = [&](const char* key, std::optional<int32_t> id) {
    for (const auto& token : json.value("added_tokens", Json::array())) {
      if (id && token.value("id", -1) == *id) j[key] = token.value("content", "");
    }
  };
  name("bos_token", ids.bos);
  name("eos_token", ids.eos);
  name("pad_token", ids.pad);
  name("unk_token", ids.unk);
  return j.dump(2) + "\n";
}

// What goes into the folder in addition to the model and config.json.
std::vector<std::pair<std::string, std::string>> TextFiles(const ExportTokenizer& t,
                                                           const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> files;
  const auto read = [&](const char* name) {
    const std::string file = JoinPath(folder, name);
    return PathExists(file) ? ReadFile(file) : "";
  };
  std::vector<int32_t> ends;
  if (t.end_of_answer) ends.push_back(*t.end_of_answer);
  files.emplace_back(kGenerationConfig,
                     GenerationConfig(t.tokenizer.get(), ends, read(kGenerationConfig),
                                      JoinPath(folder, kGenerationConfig)));
  if (std::string buffers = read(kBuffersFile); !buffers.empty()) {
    files.emplace_back(kBuffersFile, std::move(buffers));
  }
  if (t.tokenizer == nullptr) return files;
  files.emplace_back("tokenizer.json", t.tokenizer->ToJson());
  const std::string config = t.tokenizer->ConfigJson();
  files.emplace_back("tokenizer_config.json",
                     config.empty() ? TokenizerConfig(*t.tokenizer) : config);
  for (const auto& [name, one] : t.chat_templates) {
    if (name.find('/') != name.npos) {
      throw InputError(StrCat(one.origin, ": this name cannot be that of a file; change it"));
    }
    files.emplace_back(name == "default" ? "chat_template.jinja"
                                         : StrCat("additional_chat_templates/", name, ".jinja"),
                       one.text);
  }
  return files;
}

// Rounded to what the file has, by one rounding of f32.
std::vector<SafetensorsItem> Rounded(std::vector<SafetensorsItem> items, DType dtype) {
  const float limit = dtype == DType::kF16 ? kF16Limit : std::numeric_limits<float>::infinity();
  for (SafetensorsItem& item : items) {
    item = SafetensorsItem::Of(item.name, dtype, Shape(item.shape),
                               [make = item.produce, name = item.name, dtype, limit] {
                                 const Tensor x = make().Contiguous();
                                 CheckRange(x, limit, name);
                                 return x.To(dtype);
                               });
  }
  return items;
}

// What transformers does with the folder other than Lockstep; "": nothing.
std::string NoteOnTransformers(const std::string& config, const ExportTokenizer& tokenizer) {
  const std::string type = ParseJson(config, "config.json").value("model_type", "");
  if (type == "lockstep") {
    return "transformers does not load it, since none of its models has this shape: models/gpt "
           "says "
           "which options make a shape of theirs";
  }
  // Whatever tokenizer_class says, transformers 5 splits text as Qwen2 does.
  if (type != "qwen2" || !tokenizer.tokenizer || tokenizer.tokenizer->name() == "byte") return "";
  const std::string splits = Json(data::NamedSplitPattern("qwen2")).dump();
  if (tokenizer.tokenizer->ToJson().find(splits) != std::string::npos) return "";
  return "AutoTokenizer splits the text of every qwen2 model as Qwen2 does, and gives other ids "
         "than "
         "this model's tokenizer: load that as PreTrainedTokenizerFast";
}

int64_t ExportHf(const ExportConfig& c, const StoredModel& stored, const ExportType& type,
                 const ExportTokenizer& tokenizer) {
  const std::string temporary = JoinPath(ParentPath(c.out), ".tmp-" + BaseName(c.out));
  RemoveTree(temporary);
  const auto items = Rounded(ToHfTensors(*stored.model, stored.weight), *type.dtype);
  const std::string config = ToHfConfig(stored.model->config(), *type.dtype);
  try {
    WriteHfFolder(temporary, config, items, std::llround(c.max_file_gb * 1e9));
    for (const auto& [name, text] : TextFiles(tokenizer, stored.weights_folder)) {
      const std::string file = JoinPath(temporary, name);
      MakeDirectories(ParentPath(file));
      WriteFileAtomically(file, text);
    }
    RenameDurably(temporary, c.out);
  } catch (...) {
    RemoveTree(temporary);
    throw;
  }
  if (const std::string note = NoteOnTransformers(config, tokenizer); !note.empty()) {
    std::fprintf(stderr, "export_gpt: note: %s\n", note.c_str());
  }
  int64_t bytes = 0;
  for (const std::string& name : ListDirectory(c.out)) {
    const std::string file = JoinPath(c.out, name);
    if (!IsDirectory(file)) bytes += FileSize(file);
  }
  return bytes;
}

// As gguf-py's add_chat_template.
void AddChatTemplates(const data::NamedTemplates& templates, GgufModel* model) {
  const std::string key = "tokenizer.chat_template";
  std::vector<std::string> names;
  for (const auto& [given, one] : templates) {
    if (given == "default") {
      model->metadata.emplace_back(key, one.text);
      continue;
    }
    std::string& name = names.emplace_back(given);
    std::ranges::replace_if(
        name, [](unsigned char c) { return !std::isalnum(c); }, '_');
    model->metadata.emplace_back(StrCat(key, ".", name), one.text);
  }
  if (!names.empty()) model->metadata.emplace_back(key + "s", std::move(names));
}

// general.name.
std::string NameOf(const std::string& file) {
  const std::string name = BaseName(file);
  return name.ends_with(".gguf") ? name.substr(0, name.size() - 5) : name;
}

int64_t ExportGguf(const ExportConfig& c, const StoredModel& stored, const ExportType& type,
                   const ExportTokenizer& tokenizer) {
  if (tokenizer.tokenizer == nullptr) {
    throw InputError(StrCat(stored.folder,
                            ": has no tokenizer, and GGUF files have one: name its file or folder "
                            "with --tokenizer=PATH, or use --format=hf"));
  }
  const GptConfig& config = stored.model->config();
  GgufModel model =
      ToGguf(config, ToHfTensors(*stored.model, stored.weight), type.gguf, NameOf(c.out));
  GgufTokenizer t = ToGgufTokenizer(*tokenizer.tokenizer, config.vocab_size, tokenizer.origin);
  for (auto& entry : t.metadata) model.metadata.push_back(std::move(entry));
  AddChatTemplates(tokenizer.chat_templates, &model);
  if (tokenizer.end_of_answer) {  // "end of turn", at which llama.cpp also stops
    model.metadata.emplace_back("tokenizer.ggml.eot_token_id",
                                static_cast<uint32_t>(*tokenizer.end_of_answer));
  }
  WriteGguf(c.out, model.metadata, model.tensors);
  for (const std::string& difference : t.differences) {
    std::fprintf(stderr, "export_gpt: note: with this tokenizer, llama.cpp %s\n",
                 difference.c_str());
  }
  return FileSize(c.out);
}

int64_t ExportGgufAdapter(const ExportConfig& c, const StoredModel& stored, GgufType type) {
  if (stored.adapter_folder.empty()) {
    throw InputError(StrCat(stored.folder,
                            " has no adapters: name them with --adapter, or write the model with "
                            "--format=gguf"));
  }
  const PeftAdapter adapter = PeftAdapter::Open(stored.adapter_folder, stored.model->config());
  CheckBase(adapter, stored.weights_folder);
  const GgufModel gguf = ToGgufAdapter(stored.model->config(), adapter, type, NameOf(c.out));
  WriteGguf(c.out, gguf.metadata, gguf.tensors);
  return FileSize(c.out);
}

// What rounding takes of an adapter, by matrix.
using Losses = std::map<std::string, double>;

// From here on the weights are those with the adapter, in f32, rounded to `dtype`.
void AddAdapter(const StoredModel& stored, DType dtype, Losses* losses, WeightSource* weight) {
  const PeftAdapter adapter = PeftAdapter::Open(stored.adapter_folder, stored.model->config());
  CheckBase(adapter, stored.weights_folder);
  if (!adapter.base_kind().empty()) {
    std::fprintf(stderr,
                 "export_gpt: note: %s was trained on weights in 4 bits (%s), and is merged into "
                 "the weights of %s, which differ from those by that rounding\n",
                 adapter.folder().c_str(), adapter.base_kind().c_str(),
                 stored.weights_folder.c_str());
  }
  const WeightSource merged =
      MergedWeights(stored.model->config(), adapter, *weight, dtype,
                    [losses](const nn::LoraMergeLoss& loss) { (*losses)[loss.path] = loss.lost; });
  *weight = [merged](const std::string& name, const Parameter& p) {
    return merged(name, p).To(DType::kF32);
  };
}

void PrintLosses(const Losses& losses, const ExportType& as) {
  const std::string_view type = as.name;
  if (!as.dtype) {
    if (losses.empty()) return;
    // Which way a number of a block is rounded changes with the adapter, by a step that is mostly
    // larger than the adapter's change, but without a bias: the norm of these changes would tell
    // the size of the steps, not what is lost.
    fmt::print(
        "the adapter was merged in f32, and the sums were rounded to {}; --dtype=bf16 and "
        "--dtype=f32 keep more of it\n",
        type);
    return;
  }
  double most = 0;
  for (const auto& [matrix, lost] : losses) {
    fmt::print("{}: rounding to {} takes {:.1f}% of the adapter\n", matrix, type, 100 * lost);
    most = std::max(most, lost);
  }
  if (most > 0.01) {
    fmt::print(
        "the update is too small for {}, in which the model is written: --dtype=f32 keeps "
        "all of it\n",
        type);
  }
}

}  // namespace

void AddExportOptions(Options& options, ExportConfig& c) {
  options.Add("checkpoint", &c.checkpoint,
              {.aliases = {"model", "ckpt", "out_dir", "init_from"},
               .doc = "a checkpoint, a run folder (its best checkpoint, else the latest), a "
                      "Hugging Face folder, or a GGUF file"});
  options.Add("adapter", &c.adapter,
              {.aliases = {"lora", "adapters", "lora_path"},
               .doc = "a folder of adapters for the checkpoint's weights (PEFT's or a run's), or a "
                      "GGUF file of llama.cpp's, to merge into them; the checkpoint's own adapters "
                      "are always merged, but "
                      "for --format=gguf_lora"});
  options.Add("weights", &c.weights,
              {.choices = {"trained", "ema"},
               .aliases = {"ema", "use_ema"},
               .doc = "which of a checkpoint's weights: those that were trained, or their averages "
                      "(ema), which runs with optim.ema keep"});
  options.Add(
      "format", &c.format,
      {.choices = {"hf", "gguf", "gguf_lora"},
       .aliases = {"outtype"},
       .doc = "hf: a folder for transformers and programs that read its files; gguf: a "
              "file for llama.cpp; gguf_lora: a file with only the adapters, for llama.cpp's "
              "--lora"});
  options.Add("dtype", &c.dtype,
              {.choices = {"auto", "f32", "f16", "bf16", "q8_0"},
               .aliases = {"precision", "torch_dtype"},
               .doc = "dtype of the weights, rounded once; auto: as they are; q8_0, only in gguf: "
                      "8.5 bits each"});
  options.Add(
      "out", &c.out,
      {.aliases = {"output", "outfile", "output_dir", "to"}, .doc = "the folder or file to make"});
  options.Add("tokenizer", &c.tokenizer,
              {.doc = "a tokenizer's file or folder, or gpt2; empty: the checkpoint's own"});
  options.Add("max_file_gb", &c.max_file_gb,
              {.above = 0,
               .max = 1e9,
               .aliases = {"max_shard_bytes", "max_shard_size"},
               .doc = "hf: largest size of a file, in GB; a larger model is written in several, "
                      "with an index"});
}

int ExportGpt(const ExportConfig& c) {
  if (c.out.empty()) {
    throw InputError(c.format != "hf" ? "say which file to make: --out=NAME.gguf"
                                      : "say which folder to make: --out=FOLDER");
  }
  if (PathExists(c.out)) {
    throw InputError(StrCat(c.out, " exists already: name another with --out, or remove it"));
  }
  if (c.format != "gguf" && c.dtype == "q8_0") {
    throw InputError(
        "--dtype=q8_0 is a type of models in GGUF: use --format=gguf, or another --dtype");
  }
  StoredModel stored = OpenStoredModel(c.checkpoint, c.adapter);
  const bool merges = c.format != "gguf_lora";
  const ExportType& type = TypeOf(c.dtype, merges ? stored.dtype : DType::kF32);
  Losses losses;
  if (c.weights == "ema") {
    if (!stored.adapter_folder.empty()) {
      throw InputError(StrCat(stored.adapter_folder, " has adapters, whose averages cannot be ",
                              "exported: leave --weights=ema out"));
    }
    VerifyModel(stored.folder, /*averages=*/true);
    stored.weight = AveragesOr(stored.weight, stored.folder);
  }
  if (merges && !stored.adapter_folder.empty()) {
    AddAdapter(stored, type.dtype.value_or(DType::kF32), &losses, &stored.weight);
  }
  const ExportTokenizer tokenizer = merges ? FindTokenizer(c, stored) : ExportTokenizer();
  const int64_t bytes = !merges              ? ExportGgufAdapter(c, stored, type.gguf)
                        : c.format == "gguf" ? ExportGguf(c, stored, type, tokenizer)
                                             : ExportHf(c, stored, type, tokenizer);
  PrintLosses(losses, type);
  fmt::print("{}: {} of {}, {}, {}\n", c.out, HfTitle(stored.model->config()), stored.folder,
             type.name, FormatDecimalBytes(static_cast<double>(bytes)));
  return 0;
}

}  // namespace lockstep::models
