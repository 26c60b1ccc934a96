#include "data/dataset.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/mapped_file.h"
#include "core/io/sha256.h"
#include "data/corpus.h"
#include "data/dataset_parts.h"
#include "data/mixture.h"
#include "data/prepare/manifest.h"
#include "data/text/decompressor.h"
#include "data/text/text_files.h"
#include "data/token_shards.h"

namespace lockstep::data {
namespace {

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

// Text that is read by mapping its file: neither JSONL nor compressed, and only one.
bool IsPlainText(const std::string& path) {
  return !IsPattern(path) && !IsDirectory(path) && path != "-" && !IsJsonLinesName(path) &&
         !HasCompressedName(path);
}

Dataset FromPath(const DatasetOptions& options) {
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
  return FromText({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file_path, options);
}

// The sources one after the other, for training and for validation.
Dataset FromMixture(const DatasetOptions& options) {
  Dataset all;
  all.name = StrCat("the mixture ", options.mix);
  std::vector<std::shared_ptr<const TokenSource>> train, val;
  Sha256 hash;
  for (const MixtureItem& item : ParseMixture(options.mix)) {
    DatasetOptions source = options;
    source.path = item.path;
    const Dataset part = FromPath(source);
    if (!options.loaded_tokenizer && part.tokenizer && part.tokenizer->name() == "char") {
      throw InputError(StrCat("data.mix: ", item.path, " would have a vocabulary of its own ",
                              "(data.tokenizer=char); name one for all sources, such as "
                              "--data.tokenizer=byte"));
    }
    if (all.tokenizer && part.tokenizer && !Agree(*all.tokenizer, *part.tokenizer)) {
      throw InputError(StrCat("data.mix: ", item.path, " has another tokenizer than ",
                              all.mixture_paths.front(), "; prepare both with the same one"));
    }
    CheckSizes(part, options);
    if (all.tokenizer == nullptr) all.tokenizer = part.tokenizer;
    all.vocab_size = std::max(all.vocab_size, part.vocab_size);
    if (all.note.empty()) all.note = part.note;
    all.mixture.push_back({part.train->size(), item.weight});
    all.mixture_paths.push_back(item.path);
    train.push_back(part.train);
    if (part.val) val.push_back(part.val);
    const std::string identity = StrCat(part.fingerprint, ":", item.weight, "\n");
    hash.Update(std::as_bytes(std::span(identity)));
  }
  all.fingerprint = hash.HexDigest();
  all.train = std::make_shared<TokenConcatenation>(std::move(train));
  if (!val.empty()) all.val = std::make_shared<TokenConcatenation>(std::move(val));
  return all;
}

}  // namespace

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
  Dataset dataset = options.mix.empty() ? FromPath(options) : FromMixture(options);
  CheckSizes(dataset, options);
  return dataset;
}

}  // namespace lockstep::data
