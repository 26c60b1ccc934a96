#include "models/train/run_data.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/io/file.h"
#include "core/round_up.h"
#include "data/conversations/conversation_mixture.h"
#include "data/conversations/model_template.h"
#include "data/conversations/preference_dataset.h"
#include "data/mixture.h"
#include "data/mixture_dataset.h"
#include "data/sampler.h"
#include "data/text/text_files.h"
#include "data/tokenizer/text_bytes.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/gpt.h"

namespace lockstep::models {
namespace {

// The tokenizer from the folder of the weights, or why there is none: token files need none.
void SetTokenizerOf(const std::string& weights, data::DatasetOptions* d) {
  try {
    d->loaded_tokenizer = ReadTokenizer(weights);
    if (d->loaded_tokenizer == nullptr) d->no_tokenizer = StrCat(weights, ": has no tokenizer");
  } catch (const InputError& e) {
    d->no_tokenizer = e.what();
  }
}

data::DatasetOptions ToDatasetOptions(const RunConfig& config, const std::string& weights,
                                      int64_t vocab_size) {
  data::DatasetOptions d;
  d.path = config.data.path;
  d.mix = config.data.mix;
  d.field = config.data.field;
  if (config.data.tokenizer != "auto") d.tokenizer = config.data.tokenizer;
  d.val_fraction = config.data.val_path.empty() ? config.data.val_fraction : 0;
  d.document_mask = config.data.document_mask;
  d.block_size = config.model.block_size;
  d.vocab_size = vocab_size;
  d.trained = !weights.empty();
  if (!weights.empty() && config.data.tokenizer == "auto") SetTokenizerOf(weights, &d);
  return d;
}

// Where a chat template may be, the user's choice first.
std::vector<std::string> TemplateFolders(const RunConfig& config, const std::string& weights) {
  std::vector<std::string> folders;
  if (const std::string& tokenizer = config.data.tokenizer; PathExists(tokenizer)) {
    folders.push_back(IsDirectory(tokenizer) ? tokenizer : ParentPath(tokenizer));
  }
  const std::string& from = config.init_from;
  for (const std::string& folder : {weights, from.empty() ? from : CheckpointOf(from)}) {
    if (!folder.empty() && (folders.empty() || folders.back() != folder)) folders.push_back(folder);
  }
  return folders;
}

// Whether data.path or a source of data.mix is rendered by a chat template.
bool HoldsConversations(const DataOptions& data, const std::string& path) {
  if (data.format == "auto") return data::HoldsConversations(path, data.field);
  return data.format == "chat" && (data.mix.empty() || data::IsJsonLinesName(path));
}

// Of the blocks and the head, that a token uses: without those that are only looked up.
double MultipliedParameters(const GptConfig& model) {
  const Gpt gpt(model);
  int64_t count = gpt.NumActiveParameters();
  for (const auto& [name, p] : gpt.NamedParameters()) {
    const bool is_head = name.starts_with("wte.") && model.tie_embeddings;
    const bool is_table = name.starts_with("wte.") || name.starts_with("wpe.");
    if ((is_table && !is_head) || IsValueEmbed(name)) count -= p->logical_shape().numel();
  }
  return static_cast<double>(count);
}

// Whether the tokenizer of a preset gives way to that of the data.
bool KeepTheirTokenizer(const DataOptions& data) {
  const auto keep = [&](const std::string& path) {
    return data.tokenizer == "char" ? data::HoldsTokenFiles(path) : data::HoldsPreparedFiles(path);
  };
  // Texts take the tokenizer of the token files in a mixture.
  return std::ranges::any_of(SourcesOf(data), keep);
}

// The training data of a run on conversations or pairs.
void OpenConversations(const RunConfig& config, const data::DatasetOptions& d,
                       const data::ConversationOptions& c, RunSetup* setup) {
  if (Prefers(config) && !d.mix.empty()) {
    throw InputError("pairs of answers are for data.path, not data.mix: join their files");
  }
  if (config.data.order == "random") {
    throw InputError(
        "data.order = \"random\" takes windows at any place of a text, but "
        "conversations are packed into rows: use shuffled or sequential");
  }
  if (Prefers(config)) {
    setup->dataset = data::OpenPreferences(d, c).dataset;
    return;
  }
  data::ConversationDataset opened =
      d.mix.empty() ? data::OpenConversations(d, c)
                    : data::OpenConversationMixture(d, c, [&](const std::string& path) {
                        return HoldsConversations(config.data, path);
                      });
  setup->dataset = std::move(opened.dataset);
  setup->conversations = opened.counts;
}

}  // namespace

std::vector<std::string> SourcesOf(const DataOptions& data) {
  if (data.mix.empty()) return {data.path};
  std::vector<std::string> paths;
  for (const data::MixtureItem& item : data::ParseMixture(data.mix)) paths.push_back(item.path);
  return paths;
}

bool Prefers(const RunConfig& config) { return config.train.objective == "dpo"; }

bool HoldsConversations(const RunConfig& config) {
  const DataOptions& data = config.data;
  if (Prefers(config)) return true;
  return std::ranges::any_of(
      SourcesOf(data), [&](const std::string& path) { return HoldsConversations(data, path); });
}

RunConfig SettleTokenizer(const Options& options, const RunConfig& config) {
  RunConfig settled = config;
  if (options.IsWritten("data.tokenizer")) return settled;
  if (!config.init_from.empty() || KeepTheirTokenizer(config.data)) {
    settled.data.tokenizer = "auto";
  }
  return settled;
}

bool MasksDocuments(const RunConfig& config, bool conversations) {
  return config.data.document_mask || (conversations && !Prefers(config));
}

void OpenData(const RunConfig& config, const std::string& weights, int64_t vocab_size,
              bool conversations, RunSetup* setup) {
  data::DatasetOptions d = ToDatasetOptions(config, weights, vocab_size);
  d.known_files = setup->start.known_files;
  d.shared = setup->start.shared;
  setup->document_mask = MasksDocuments(config, conversations);
  const data::ConversationOptions c{.chat_template = config.data.chat_template,
                                    .folders = TemplateFolders(config, weights),
                                    .if_long = config.data.if_long,
                                    .special_tokens_of_users = config.data.user_special_tokens};
  conversations ? OpenConversations(config, d, c, setup)
                : void(setup->dataset = data::OpenDataset(d));
  if (!config.data.val_path.empty()) {
    data::OpenValidation(
        config.data.val_path, d,
        [&](data::DatasetOptions file) {
          if (Prefers(config)) return data::OpenPreferences(file, c).dataset;
          if (conversations && HoldsConversations(config.data, file.path)) {
            return data::OpenConversations(file, c).dataset;
          }
          file.block_size = 1;  // it may be shorter than a window
          return conversations ? data::OpenDocuments(file) : data::OpenDataset(file);
        },
        &setup->dataset);
  }
  if (auto& tokenizer = setup->dataset.tokenizer; !conversations && tokenizer && !weights.empty()) {
    tokenizer = data::KeepTemplates(c.folders, std::move(tokenizer));
  }
}

std::vector<ValidationStream> ValidationOf(const RunSetup& setup) {
  const data::Dataset& dataset = setup.dataset;
  if (!dataset.val || dataset.val->size() < 2) return {};
  const TrainOptions& train = setup.config.train;
  const auto parts = std::ssize(dataset.val_parts);
  std::vector<ValidationStream> all;
  const auto add = [&](const std::string& name, std::shared_ptr<const data::TokenSource> tokens,
                       int64_t most_batches) {
    const data::EvalBatches batches(std::move(tokens), setup.sample_tokens(), train.batch_size,
                                    most_batches, setup.document_mask);
    const bool is_text = dataset.tokenizer && !setup.prefers();
    all.push_back({name, batches, is_text ? data::CountBytes(batches, *dataset.tokenizer) : 0});
  };
  add("", dataset.val, train.eval_batches);
  if (parts < 2) return all;
  for (const data::ValidationPart& part : dataset.val_parts) {
    // Together no more than the whole, but at least one of each.
    if (part.tokens->size() >= 2) add(part.name, part.tokens, DivideUp(train.eval_batches, parts));
  }
  return all;
}

std::optional<double> ValidationStream::BitsPerByte(double loss) const {
  if (bytes == 0) return {};
  return loss * static_cast<double>(batches.num_targets()) /
         (static_cast<double>(bytes) * std::numbers::ln2);
}
int64_t StepsOf(const RunSetup& setup) {
  const TrainOptions& train = setup.config.train;
  if (train.steps > 0 || train.is_open()) return train.steps;
  double samples = 0;
  if (train.tokens_per_parameter > 0) {
    samples = train.tokens_per_parameter * MultipliedParameters(setup.model) /
              static_cast<double>(setup.sample_tokens());
  } else {
    const int64_t windows =
        data::MakeSampler(setup.dataset, data::Order::kSequential, 0, setup.sample_tokens())
            .windows_per_epoch();
    samples = train.epochs * static_cast<double>(windows);
  }
  samples -= static_cast<double>(setup.samples_at_start);
  const int64_t steps = std::llround(samples / static_cast<double>(setup.samples_per_step()));
  return std::max<int64_t>(1, setup.start.step + steps);
}

}  // namespace lockstep::models
