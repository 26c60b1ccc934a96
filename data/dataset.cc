#include "data/dataset.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/mapped_file.h"
#include "data/corpus.h"
#include "data/dataset_parts.h"
#include "data/mixture_dataset.h"
#include "data/prepare/manifest.h"
#include "data/shared_datasets.h"
#include "data/text/decompressor.h"
#include "data/text/require_text.h"
#include "data/text/text_files.h"
#include "data/token_shards.h"

namespace lockstep::data {
namespace {

// Text that is read by mapping its file: neither JSONL nor compressed, and only one.
bool IsPlainText(const std::string& path) {
  return !IsPattern(path) && !IsDirectory(path) && path != "-" && !IsJsonLinesName(path) &&
         !HasCompressedName(path);
}

int32_t LargestToken(const TokenSource& source) {
  int32_t largest = 0;
  std::vector<int32_t> piece(size_t{1} << 16);
  for (int64_t at = 0; at < source.size(); at += std::ssize(piece)) {
    const int64_t count = std::min<int64_t>(std::ssize(piece), source.size() - at);
    const std::span some = std::span(piece).first(static_cast<size_t>(count));
    source.Read(at, some);
    largest = std::max(largest, *std::ranges::max_element(some));
  }
  return largest;
}

Dataset OpenPath(const DatasetOptions& options) {
  const std::string& path = options.path;
  if (path.empty()) return FromText(EmbeddedCorpus(), "the embedded corpus", options);
  if (path.ends_with(".bin")) return FromTokenFiles(ExpandPattern(path), options);
  if (IsDirectory(path)) {
    if (const auto manifest = ReadManifest(path)) return FromPrepared(*manifest, options);
    if (const std::string bins = JoinPath(path, "*.bin"); HasMatch(bins)) {
      return FromTokenFiles(ExpandPattern(bins), options);
    }
  }
  if (!IsPlainText(path)) return FromDocuments(options);
  const std::string file_path = ExpandPattern(path).front();
  const MappedFile file(file_path);
  const std::span<const std::byte> bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!IsTextName(path)) {
    RequireNoTable(file_path, kTypeAdvice);
    RequireNoJsonLines(text.substr(0, kTextSampleBytes), file_path, kTypeAdvice);
  }
  return FromText(text, file_path, options);
}

// A tokenizer may have more tokens than its model, which must not occur then.
Dataset FromPath(const DatasetOptions& options) {
  Dataset dataset;
  if (TakeShared(options, /*counts=*/{}, &dataset)) return dataset;
  dataset = OpenPath(options);
  if (options.vocab_size > 0 && dataset.vocab_size > options.vocab_size) {
    for (const auto& source : {dataset.train, dataset.val}) {
      if (source != nullptr) CheckVocabulary(LargestToken(*source), options);
    }
  }
  Share(options, /*counts=*/{}, &dataset);
  return dataset;
}

}  // namespace

std::string TooMany(int64_t needed, const DatasetOptions& options) {
  if (!options.trained) {
    return StrCat(", but model.vocab_size is ", options.vocab_size,
                  "; set --model.vocab_size=", needed, " or leave it out");
  }
  return StrCat(", but the model of the weights has ", options.vocab_size,
                ": if they belong together, let transformers add the others, and start from what ",
                "it saves: model = AutoModelForCausalLM.from_pretrained(FOLDER); "
                "model.resize_token_embeddings(",
                needed, "); model.save_pretrained(FOLDER)");
}

void CheckVocabulary(int32_t largest, const DatasetOptions& options) {
  if (options.vocab_size == 0 || largest < options.vocab_size) return;
  throw InputError(StrCat(options.path, ": its text has the token ", largest, ", of ", largest + 1,
                          " or more", TooMany(largest + 1, options)));
}

bool HoldsTokenFiles(const std::string& path) {
  if (path.ends_with(".bin")) return true;
  return IsDirectory(path) && (HoldsPreparedFiles(path) || HasMatch(JoinPath(path, "*.bin")));
}

bool HoldsPreparedFiles(const std::string& path) {
  if (path.ends_with(".bin")) return HasMatch(path) && ListedByManifest(ExpandPattern(path));
  return IsDirectory(path) && PathExists(JoinPath(path, kManifestName));
}

bool HoldsJsonLines(const std::string& path) {
  if (path.empty() || HoldsTokenFiles(path)) return false;
  return std::ranges::any_of(ListTextFiles(std::vector{path}), IsJsonLinesName);
}

void CheckSizes(const Dataset& dataset, const DatasetOptions& options) {
  const int64_t needed = options.block_size + 1;
  const int64_t found = dataset.train->size();
  if (found < needed) {
    throw InputError(
        StrCat(dataset.name, ": ", found,
               " tokens are left for training, but one window needs block_size + 1 = ", needed,
               "; use more data", found > 1 ? StrCat(", or --model.block_size=", found - 1) : "",
               dataset.val ? ", or a smaller --data.val_fraction" : ""));
  }
  if (dataset.val != nullptr && dataset.val->size() < 2) {
    throw InputError(StrCat(dataset.name, ": the validation part has ", dataset.val->size(),
                            " tokens, but needs at least 2; use more data, or another "
                            "--data.val_fraction (0 turns validation off; now ",
                            options.val_fraction, ")"));
  }
}

Sampler MakeSampler(const Dataset& dataset, Order order, uint64_t seed, int64_t block_size) {
  if (dataset.mixture.empty()) return Sampler(order, seed, dataset.train->size(), block_size);
  return Sampler(order, seed, dataset.mixture, block_size);
}

Dataset OpenDataset(const DatasetOptions& options) {
  LS_CHECK(options.val_fraction >= 0 && options.val_fraction < 1,
           "data.val_fraction=", options.val_fraction, ": expected 0 <= val_fraction < 1");
  LS_CHECK(options.block_size >= 1, "block_size=", options.block_size, ": expected at least 1");
  LS_CHECK(options.mix.empty() || options.path.empty(),
           "data.path and data.mix exclude each other");
  Dataset dataset = options.mix.empty() ? FromPath(options) : OpenMixture(options, FromPath);
  CheckSizes(dataset, options);
  return dataset;
}

}  // namespace lockstep::data
