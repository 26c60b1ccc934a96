#include "data/dataset.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/mapped_file.h"
#include "core/io/sha256.h"
#include "data/corpus.h"
#include "data/mixture.h"
#include "data/prepare/manifest.h"
#include "data/text/document_reader.h"
#include "data/text/text_files.h"
#include "data/token_shards.h"
#include "data/tokenizer/gpt2_files.h"
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

// Of GPT-2's vocabulary and of Llama 3's; llm.c begins each document with it.
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

// Makes both streams know where documents begin, by the token that separates them, unless they know
// it already. `unknown`: what to say, and do, where there is no such token.
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

std::string TokenizerChoice(const DatasetOptions& options) {
  return options.tokenizer.empty() ? "char" : options.tokenizer;
}

// The tokenizer of raw text, which must fit the model.
void SetTokenizer(std::string_view text, const DatasetOptions& options, Dataset* dataset) {
  dataset->tokenizer = options.loaded_tokenizer;
  if (dataset->tokenizer == nullptr) {
    dataset->tokenizer = MakeTokenizer(TokenizerChoice(options), text);
  }
  dataset->vocab_size = dataset->tokenizer->vocab_size();
  if (options.vocab_size > 0 && dataset->vocab_size > options.vocab_size) {
    throw InputError(StrCat(dataset->name, ": the ", dataset->tokenizer->name(), " tokenizer has ",
                            dataset->vocab_size, " tokens, but model.vocab_size is ",
                            options.vocab_size, "; set --model.vocab_size=", dataset->vocab_size,
                            " or leave it out"));
  }
}

// The last val_fraction of the training tokens become those for validation.
void HoldOut(double val_fraction, Dataset* dataset) {
  if (val_fraction == 0) return;
  const std::shared_ptr<const TokenSource> all = dataset->train;
  const int64_t split = TrainCount(all->size(), val_fraction);
  dataset->train = std::make_shared<TokenSlice>(all, 0, split);
  dataset->val = std::make_shared<TokenSlice>(all, split, all->size());
}

Dataset FromText(std::string_view text, const std::string& name, const DatasetOptions& options) {
  if (text.empty()) throw InputError(StrCat(name, ": the file is empty; expected text"));
  const bool bytes = options.loaded_tokenizer ? options.loaded_tokenizer->name() == "byte"
                                              : TokenizerChoice(options) == "byte";
  if (!bytes) RequireUtf8(text, name);
  Dataset dataset;
  dataset.name = name;
  dataset.fingerprint = Sha256Of(text);
  SetTokenizer(text, options, &dataset);
  const size_t split = SplitPosition(text, *dataset.tokenizer, options.val_fraction);
  dataset.train = EncodePart(*dataset.tokenizer, text, 0, split, name);
  if (options.val_fraction > 0) {
    dataset.val = EncodePart(*dataset.tokenizer, text, split, text.size(), name);
  }
  if (options.document_mask) {
    SeparateDocuments(&dataset, dataset.tokenizer->end_of_text(), Separator::kLast,
                      StrCat("the ", dataset.tokenizer->name(),
                             " tokenizer has no token for their ends: use token files in which "
                             "one separates documents, as nanoGPT and llm.c write them"));
  }
  return dataset;
}

// Tokens in memory whose documents are known.
class DocumentTokens : public MemoryTokens {
 public:
  DocumentTokens(std::span<const int32_t> tokens, std::vector<uint64_t> starts)
      : MemoryTokens(tokens), starts_(std::move(starts)) {}

 private:
  std::span<const uint64_t> document_starts() const override { return starts_; }
  const std::vector<uint64_t> starts_;
};

// JSONL, several files, or compressed ones, in memory. With an end-of-text token before each
// document, if the tokenizer has one, as `prepare` writes it in llm.c's format.
Dataset FromDocuments(const DatasetOptions& options) {
  const std::vector<std::string> files = ListTextFiles(std::vector{options.path});
  const TextOptions text_options{.field = options.field};
  DocumentReader reader(files, text_options);
  std::vector<std::string> texts;
  int64_t bad_utf8 = 0;
  for (RawDocument document; reader.Next(&document);) {
    DocumentText text = TextOf(std::move(document), files, text_options);
    bad_utf8 += text.bad_utf8;
    if (!text.text.empty()) texts.push_back(std::move(text.text));
  }
  if (texts.empty()) throw InputError(StrCat(options.path, ": there is no text in it"));
  if (files.size() == 1 && texts.size() == 1) return FromText(texts[0], options.path, options);
  Dataset dataset;
  dataset.name = options.path;
  if (bad_utf8 > 0) {
    dataset.note = StrCat(options.path, ": ", bad_utf8, " malformed parts of UTF-8 became U+FFFD");
  }
  std::string all;  // only a char tokenizer is made from it
  if (!options.loaded_tokenizer && TokenizerChoice(options) == "char") {
    for (const std::string& text : texts) all += text;
  }
  SetTokenizer(all, options, &dataset);
  const std::optional<int32_t> end = dataset.tokenizer->end_of_text();
  Sha256 hash;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> starts;
  for (const std::string& text : texts) {
    const uint64_t size = text.size();
    hash.Update(std::as_bytes(std::span(&size, 1)));
    hash.Update(std::as_bytes(std::span(text)));
    starts.push_back(tokens.size());
    if (end) tokens.push_back(*end);
    const std::vector<int32_t> ids = dataset.tokenizer->Encode(text);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  dataset.fingerprint = hash.HexDigest();
  dataset.train = std::make_shared<DocumentTokens>(tokens, std::move(starts));
  HoldOut(options.val_fraction, &dataset);
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

// The token between documents, if it is known.
std::optional<int32_t> SeparatorOf(const Dataset& dataset, TokenFormat format, bool is_gpt2) {
  if (format == TokenFormat::kLlmcLlama3 && dataset.vocab_size > kLlama3BeginOfText) {
    return kLlama3BeginOfText;
  }
  if (dataset.tokenizer) return dataset.tokenizer->end_of_text();
  if (is_gpt2 || format == TokenFormat::kLlmcGpt2) return kGpt2EndOfText;
  return std::nullopt;
}

Dataset FromTokenFiles(const std::vector<std::string>& paths, const DatasetOptions& options) {
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
  const TokenShards shards = OpenTokenShards(paths, limit);
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
  } else {
    HoldOut(options.val_fraction, &dataset);
  }
  if (options.document_mask) {
    const TokenFormat format = shards.train.front()->format();
    SeparateDocuments(&dataset, SeparatorOf(dataset, format, absent_gpt2),
                      format == TokenFormat::kNanoGpt ? Separator::kLast : Separator::kFirst,
                      dataset.tokenizer == nullptr
                          ? "these token files do not tell which token separates them: name their "
                            "tokenizer with --data.tokenizer="
                          : StrCat("the ", dataset.tokenizer->name(),
                                   " tokenizer has no token that separates them: use the one that "
                                   "made the files"));
  }
  return dataset;
}

// Whether two tokenizers give the same ids, as far as one awkward text tells.
bool Agree(const Tokenizer& a, const Tokenizer& b) {
  constexpr char kProbe[] = "The dog's 12345 naïve 中文 \U0001F600\n\n  x = {};\tI'LL <b>";
  if (a.vocab_size() != b.vocab_size() || a.end_of_text() != b.end_of_text()) return false;
  try {
    return a.Encode(kProbe) == b.Encode(kProbe);
  } catch (const InputError&) {  // a char tokenizer that lacks some
    return a.ToJson() == b.ToJson();
  }
}

// A folder that `prepare` made.
Dataset FromPrepared(const Manifest& manifest, const DatasetOptions& options) {
  const std::string& folder = options.path;
  if (!manifest.complete()) {
    throw InputError(StrCat(folder, ": prepare has not finished this folder; repeat the command ",
                            "that made it, and it goes on where it was interrupted"));
  }
  const std::shared_ptr<const Tokenizer> own = LoadTokenizer(JoinPath(folder, "tokenizer.json"));
  DatasetOptions with_tokenizer = options;
  if (!options.loaded_tokenizer) {
    with_tokenizer.loaded_tokenizer =
        options.tokenizer.empty() ? own : MakeTokenizer(options.tokenizer, "");
  }
  if (!Agree(*own, *with_tokenizer.loaded_tokenizer)) {
    throw InputError(
        StrCat(folder, ": its tokens were made by another tokenizer (", own->name(), ", ",
               own->vocab_size(), " tokens) than ",
               options.loaded_tokenizer ? "that of the weights to start from" : "data.tokenizer",
               "; prepare the text again with the right one"));
  }
  std::vector<std::string> paths;
  for (const ShardInfo& shard : manifest.shards) paths.push_back(JoinPath(folder, shard.file));
  return FromTokenFiles(paths, with_tokenizer);
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
