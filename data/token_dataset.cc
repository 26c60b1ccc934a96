// Data sets of token files, and of the folders of them that `prepare` makes.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/sha256.h"
#include "data/dataset_parts.h"
#include "data/token_shards.h"
#include "data/tokenizer/document_marks.h"
#include "data/tokenizer/gpt2_files.h"
#include "data/tokenizer/tokenizer_difference.h"

namespace lockstep::data {
namespace {

// From GPT-2's vocabulary and from Llama 3's; llm.c begins each document with it.
constexpr int32_t kGpt2EndOfText = 50256, kLlama3BeginOfText = 128000;

bool Contains(const TokenSource& source, int32_t token) {
  std::vector<int32_t> piece(size_t{1} << 16);
  for (int64_t at = 0; at < source.size(); at += std::ssize(piece)) {
    const std::span some = std::span(piece).first(
        static_cast<size_t>(std::min<int64_t>(std::ssize(piece), source.size() - at)));
    source.Read(at, some);
    if (std::ranges::find(some, token) != some.end()) return true;
  }
  return false;
}

std::string OlderFingerprint(const TokenShards& shards) {
  constexpr size_t kEnd = size_t{1} << 16;
  Sha256 hash;
  for (const auto* files : {&shards.train, &shards.val}) {
    for (const auto& file : *files) {
      const int64_t count = file->size();
      const std::span<const std::byte> bytes = file->bytes();
      hash.Update(std::as_bytes(std::span(&count, 1)));
      hash.Update(bytes.first(std::min(bytes.size(), kEnd)));
      hash.Update(bytes.last(std::min(bytes.size(), kEnd)));
    }
  }
  return hash.HexDigest();
}

void SetContents(const TokenShards& shards, Dataset* dataset) {
  Sha256 hash;
  for (const auto* files : {&shards.train, &shards.val}) {
    const std::string begin = StrCat(files->size(), files == &shards.val ? " for validation" : "");
    hash.Update(std::as_bytes(std::span(begin)));
    for (const auto& file : *files) {
      dataset->vocab_size = std::max(dataset->vocab_size, int64_t{file->max_token()} + 1);
      for (const FileContent& content : file->contents()) {
        hash.Update(std::as_bytes(std::span(content.sha256)));
        dataset->files.push_back(content);
      }
    }
  }
  dataset->fingerprint = hash.HexDigest();
  dataset->older_fingerprint = OlderFingerprint(shards);
}

std::shared_ptr<const TokenSource> Concatenate(
    const std::vector<std::shared_ptr<const TokenFile>>& files) {
  if (files.size() == 1) return files[0];
  return std::make_shared<TokenConcatenation>(
      std::vector<std::shared_ptr<const TokenSource>>(files.begin(), files.end()));
}

void RefuseChar(const DatasetOptions& options) {
  if (options.loaded_tokenizer || options.tokenizer != "char") return;
  throw InputError(StrCat(options.path,
                          ": a char tokenizer is made from a text, but these are token files; set "
                          "--data.tokenizer to the tokenizer that made them, or leave it out"));
}

// Calls f(folder, its manifest, whether that lists any of the files) for each folder of the files
// that has a manifest.
template <class F>
void ForManifests(const std::vector<std::string>& paths, const F& f) {
  std::map<std::string, std::set<std::string>> names_in;
  for (const std::string& path : paths) names_in[ParentPath(path)].insert(BaseName(path));
  for (const auto& [folder, names] : names_in) {
    if (!HasManifest(folder)) continue;
    const Manifest manifest = *ReadManifest(folder);
    f(folder, manifest,
      std::ranges::any_of(manifest.shards, [&names = names](const ShardInfo& shard) {
        return names.contains(shard.file);
      }));
  }
}

void RequireFinished(const Manifest& manifest, const std::string& folder) {
  if (manifest.complete()) return;
  throw InputError(StrCat(folder, ": prepare has not finished this folder; repeat the command ",
                          "that made it, and it continues where it was interrupted"));
}

// The tokenizer with which `prepare` made these files, or null if it has not.
std::shared_ptr<const Tokenizer> TokenizerBeside(const std::vector<std::string>& paths) {
  std::shared_ptr<const Tokenizer> found;
  std::string where;
  ForManifests(paths, [&](const std::string& folder, const Manifest& manifest, bool lists) {
    RequireFinished(manifest, folder);
    if (!lists) return;
    std::shared_ptr<const Tokenizer> own = LoadTokenizer(JoinPath(folder, "tokenizer.json"));
    if (found == nullptr) {
      found = std::move(own);
      where = folder;
    } else if (const std::string other = DifferenceOf(*own, *found); !other.empty()) {
      throw InputError(StrCat(folder, " has another tokenizer than ", where, ": ", other,
                              "; prepare both with the same one"));
    }
  });
  return found;
}

// The tokenizer that the options name, or else `own`, that of the files; they must agree.
std::shared_ptr<const Tokenizer> TokenizerFor(std::shared_ptr<const Tokenizer> own,
                                              const DatasetOptions& options) {
  std::shared_ptr<const Tokenizer> named = options.loaded_tokenizer;
  if (named == nullptr && options.tokenizer.empty()) return own;
  if (named == nullptr) {
    named = own == nullptr && options.tokenizer == "gpt2" ? FindGpt2Tokenizer()
                                                          : MakeTokenizer(options.tokenizer, "");
  }
  if (own == nullptr) return named;
  if (const std::string other = DifferenceOf(*own, *named); !other.empty()) {
    throw InputError(
        StrCat(options.path, ": its tokens were made by another tokenizer than ",
               options.loaded_tokenizer ? "that of the weights to start from" : "data.tokenizer",
               ": ", other, "; prepare the text again with the right one"));
  }
  return named;
}

// The token between documents, if it is known.
std::optional<int32_t> SeparatorOf(const Dataset& dataset, TokenFormat format, bool is_gpt2) {
  // llm.c's 32-bit files have ids of any large vocabulary, not of Llama 3's only.
  const Tokenizer* tokenizer = dataset.tokenizer.get();
  const bool is_llama3 = tokenizer ? tokenizer->special_ids().bos == kLlama3BeginOfText
                                   : dataset.vocab_size > kLlama3BeginOfText;
  if (format == TokenFormat::kLlmcLlama3 && is_llama3) return kLlama3BeginOfText;
  if (tokenizer) return MarksOf(*tokenizer, !HasHeader(format)).separator;
  if (is_gpt2 || format == TokenFormat::kLlmcGpt2) return kGpt2EndOfText;
  return std::nullopt;
}

// A shard that was truncated, or another file in its place, may still be a token file.
void CheckShardSizes(const Manifest& manifest, const std::string& folder) {
  const auto name = manifest.options.find("format");
  const auto format = TokenFormatOf(name == manifest.options.end() ? "" : name->second);
  if (!format) {
    throw InputError(StrCat(JoinPath(folder, kManifestName),
                            ": \"format\" in \"options\" names no "
                            "format of token files; prepare the text again"));
  }
  for (const ShardInfo& shard : manifest.shards) {
    const std::string path = JoinPath(folder, shard.file);
    const int64_t bytes = FileSize(path);
    const int64_t expected = TokenFileBytes(*format, shard.tokens);
    if (bytes == expected) continue;
    throw InputError(StrCat(path, " has ", bytes, " bytes, but ", expected, " with the ",
                            shard.tokens, " tokens that ", kManifestName,
                            " lists: it was truncated or replaced; remove the folder and prepare "
                            "the text again"));
  }
}

}  // namespace

int64_t TrainCount(int64_t n, double val_fraction) {
  return static_cast<int64_t>(static_cast<double>(n) * (1.0 - val_fraction));
}

void HoldOut(double val_fraction, Dataset* dataset) {
  if (val_fraction == 0) return;
  const std::shared_ptr<const TokenSource> all = dataset->train;
  const int64_t split = TrainCount(all->size(), val_fraction);
  dataset->train = std::make_shared<TokenSlice>(all, 0, split);
  dataset->val = std::make_shared<TokenSlice>(all, split, all->size());
}

void SeparateDocuments(Dataset* dataset, std::optional<int32_t> token, Separator place,
                       const std::string& unknown) {
  const bool known =
      dataset->train->has_documents() && (dataset->val == nullptr || dataset->val->has_documents());
  if (known) return;
  const std::string what =
      StrCat(dataset->name, ": data.document_mask needs to know where documents begin, but ");
  const char* otherwise = ", or leave data.document_mask out";
  if (!token) throw InputError(StrCat(what, unknown, otherwise));
  if (!Contains(*dataset->train, *token)) {
    throw InputError(StrCat(what, "the token ", *token, ", which would separate them, does not ",
                            "occur in the training data: encode it again with that token ",
                            place == Separator::kFirst ? "before" : "after", " each document",
                            otherwise));
  }
  for (auto* stream : {&dataset->train, &dataset->val}) {
    if (*stream) *stream = std::make_shared<SeparatedTokens>(*stream, *token, place);
  }
}

bool ListedByManifest(const std::vector<std::string>& paths) {
  bool listed = false;
  ForManifests(paths, [&](const std::string&, const Manifest&, bool lists) { listed |= lists; });
  return listed;
}

Dataset FromTokenFiles(const std::vector<std::string>& paths, const DatasetOptions& options) {
  RefuseChar(options);
  Dataset dataset;
  dataset.name = options.path;
  dataset.tokenizer = TokenizerFor(TokenizerBeside(paths), options);
  const bool absent_gpt2 = options.tokenizer == "gpt2" && dataset.tokenizer == nullptr;
  if (dataset.tokenizer == nullptr) {
    dataset.note = StrCat("samples are shown as token ids; to see text, ",
                          absent_gpt2 ? HowToGetGpt2Vocabulary()
                                      : "name the tokens' tokenizer with --data.tokenizer=");
  }
  std::optional<int64_t> limit;
  if (options.vocab_size > 0) limit = options.vocab_size;
  if (absent_gpt2) limit = std::min(limit.value_or(INT64_MAX), kGpt2VocabSize);
  if (dataset.tokenizer) {
    limit = std::min(limit.value_or(INT64_MAX), dataset.tokenizer->vocab_size());
  }
  const TokenShards shards = OpenTokenShards(paths, limit, options.known_files);
  SetContents(shards, &dataset);
  if (dataset.tokenizer) dataset.vocab_size = dataset.tokenizer->vocab_size();
  if (absent_gpt2) dataset.vocab_size = kGpt2VocabSize;
  dataset.train = Concatenate(shards.train);
  if (!shards.val.empty()) {
    dataset.val = Concatenate(shards.val);
    dataset.val_has_files = true;
  } else {
    HoldOut(options.val_fraction, &dataset);
  }
  if (options.document_mask) {
    const TokenFormat format = shards.train.front()->format();
    SeparateDocuments(&dataset, SeparatorOf(dataset, format, absent_gpt2),
                      HasHeader(format) ? Separator::kFirst : Separator::kLast,
                      dataset.tokenizer == nullptr
                          ? "these token files do not tell which token separates them: name their "
                            "tokenizer with --data.tokenizer="
                          : StrCat("the ", dataset.tokenizer->name(),
                                   " tokenizer has no token that separates them: use the one that "
                                   "made the files"));
  }
  return dataset;
}

Dataset FromPrepared(const Manifest& manifest, const DatasetOptions& options) {
  const std::string& folder = options.path;
  RequireFinished(manifest, folder);
  CheckShardSizes(manifest, folder);
  std::vector<std::string> paths;
  for (const ShardInfo& shard : manifest.shards) paths.push_back(JoinPath(folder, shard.file));
  return FromTokenFiles(paths, options);
}

}  // namespace lockstep::data
