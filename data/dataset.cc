#include "data/dataset.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/io/mapped_file.h"
#include "core/io/sha256.h"
#include "data/corpus.h"
#include "data/token_shards.h"
#include "data/tokenizer/gpt2_vocabulary.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

// nanoGPT's split: the first int(n * 0.9) of n.
int64_t TrainCount(int64_t n, double val_fraction) {
  return static_cast<int64_t>(static_cast<double>(n) * (1.0 - val_fraction));
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

// Where the training part of a text ends, in bytes.
size_t SplitPosition(std::string_view text, const Tokenizer& tokenizer, double val_fraction) {
  if (tokenizer.name() == "byte") {
    return TrainCount(static_cast<int64_t>(text.size()), val_fraction);
  }
  return Utf8Offset(text, TrainCount(CountUtf8(text), val_fraction));
}

// "utf-16", "utf-32" (iconv reads their byte-order mark), "utf-16le" or "utf-16be" for text that
// looks like it; else "".
std::string WideEncodingOf(std::string_view text) {
  using std::string_view_literals::operator""sv;
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) return "utf-32";
  if (text.starts_with("\xff\xfe"sv) || text.starts_with("\xfe\xff"sv)) return "utf-16";
  // Without the mark: in most languages every other byte of many characters is zero, and never the
  // byte next to it.
  const size_t pairs = std::min<size_t>(text.size(), 4096) / 2;
  size_t even = 0, odd = 0;
  for (size_t i = 0; i < pairs; ++i) {
    even += text[2 * i] == '\0';
    odd += text[2 * i + 1] == '\0';
  }
  if (4 * odd > pairs && even == 0) return "utf-16le";
  if (4 * even > pairs && odd == 0) return "utf-16be";
  return "";
}

void RequireUtf8(std::string_view text, const std::string& name) {
  if (const std::string wide = WideEncodingOf(text); !wide.empty()) {
    throw InputError(StrCat(name, ": this is ", wide,
                            ", but text must be UTF-8. Convert it: iconv -f ", wide, " -t utf-8 ",
                            name, " > utf-8.txt"));
  }
  const size_t valid = ValidUtf8Prefix(text);
  if (valid == text.size()) return;
  throw InputError(StrCat(name, ": not UTF-8: byte ", valid, " is 0x", std::hex,
                          static_cast<int>(static_cast<uint8_t>(text[valid])),
                          ". Convert the file (iconv -f latin1 -t utf-8), or use its bytes, with "
                          "--data.tokenizer=byte. The names of token files must end in .bin"));
}

std::shared_ptr<const TokenSource> EncodePart(const Tokenizer& tokenizer, std::string_view text,
                                              size_t begin, size_t end, const std::string& name) {
  try {
    return std::make_shared<MemoryTokens>(tokenizer.Encode(text.substr(begin, end - begin)));
  } catch (const InputError& error) {
    throw InputError(StrCat(name, ", from byte ", begin, ": ", error.what()));
  }
}

Dataset FromText(std::string_view text, const std::string& name, const DatasetOptions& options) {
  if (text.empty()) throw InputError(StrCat(name, ": the file is empty; expected text"));
  const std::string choice = options.tokenizer.empty() ? "char" : options.tokenizer;
  const bool bytes =
      options.loaded_tokenizer ? options.loaded_tokenizer->name() == "byte" : choice == "byte";
  if (!bytes) RequireUtf8(text, name);
  Dataset dataset;
  dataset.name = name;
  dataset.fingerprint = Sha256Of(text);
  dataset.tokenizer = options.loaded_tokenizer;
  if (dataset.tokenizer == nullptr) dataset.tokenizer = MakeTokenizer(choice, text);
  dataset.vocab_size = dataset.tokenizer->vocab_size();
  if (options.vocab_size > 0 && dataset.vocab_size > options.vocab_size) {
    throw InputError(StrCat(name, ": the ", dataset.tokenizer->name(), " tokenizer has ",
                            dataset.vocab_size, " tokens, but model.vocab_size is ",
                            options.vocab_size, "; set --model.vocab_size=", dataset.vocab_size,
                            " or leave it out"));
  }
  const size_t split = SplitPosition(text, *dataset.tokenizer, options.val_fraction);
  dataset.train = EncodePart(*dataset.tokenizer, text, 0, split, name);
  if (options.val_fraction > 0) {
    dataset.val = EncodePart(*dataset.tokenizer, text, split, text.size(), name);
  }
  return dataset;
}

std::string Fingerprint(const TokenShards& shards) {
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

std::shared_ptr<const TokenSource> Concatenate(
    const std::vector<std::shared_ptr<const TokenFile>>& files) {
  if (files.size() == 1) return files[0];
  return std::make_shared<TokenConcatenation>(
      std::vector<std::shared_ptr<const TokenSource>>(files.begin(), files.end()));
}

Dataset FromTokenFiles(const DatasetOptions& options) {
  Dataset dataset;
  dataset.name = options.path;
  dataset.tokenizer = options.loaded_tokenizer;
  if (dataset.tokenizer == nullptr && !options.tokenizer.empty()) {
    if (options.tokenizer == "char") {
      throw InputError(
          StrCat(options.path,
                 ": a char tokenizer is made from a text, but these are token files; set "
                 "--data.tokenizer to the tokenizer that made them, or leave it out"));
    }
    dataset.tokenizer =
        options.tokenizer == "gpt2" ? FindGpt2Tokenizer() : MakeTokenizer(options.tokenizer, "");
  }
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
  const TokenShards shards = OpenTokenShards(options.path, limit);
  for (const auto* files : {&shards.train, &shards.val}) {
    for (const auto& file : *files) {
      dataset.vocab_size = std::max<int64_t>(dataset.vocab_size, int64_t{file->max_token()} + 1);
    }
  }
  if (dataset.tokenizer) dataset.vocab_size = dataset.tokenizer->vocab_size();
  if (absent_gpt2) dataset.vocab_size = kGpt2VocabSize;
  dataset.fingerprint = Fingerprint(shards);
  dataset.train = Concatenate(shards.train);
  if (!shards.val.empty()) {
    dataset.val = Concatenate(shards.val);
  } else if (options.val_fraction > 0) {
    const std::shared_ptr<const TokenSource> all = dataset.train;
    const int64_t split = TrainCount(all->size(), options.val_fraction);
    dataset.train = std::make_shared<TokenSlice>(all, 0, split);
    dataset.val = std::make_shared<TokenSlice>(all, split, all->size());
  }
  return dataset;
}

}  // namespace

Dataset OpenDataset(const DatasetOptions& options) {
  LS_CHECK(options.val_fraction >= 0 && options.val_fraction < 1,
           "data.val_fraction=", options.val_fraction, ": expected 0 <= val_fraction < 1");
  LS_CHECK(options.block_size >= 1, "block_size=", options.block_size, ": expected at least 1");
  Dataset dataset;
  if (options.path.empty()) {
    dataset = FromText(EmbeddedCorpus(), "the embedded corpus", options);
  } else if (options.path.ends_with(".bin")) {
    dataset = FromTokenFiles(options);
  } else {
    if (IsPattern(options.path)) {
      throw InputError(StrCat(
          "data.path=", options.path,
          ": patterns are only for token files and must end in .bin; give a single text file"));
    }
    const std::string path = ExpandPattern(options.path).front();
    const MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    dataset = FromText({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, options);
  }
  CheckSizes(dataset, options);
  return dataset;
}

}  // namespace lockstep::data
