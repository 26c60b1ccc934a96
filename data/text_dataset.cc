// Data sets of texts: encoded in memory.
#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/sha256.h"
#include "core/thread_pool.h"
#include "data/dataset_parts.h"
#include "data/text/document_reader.h"
#include "data/text/require_text.h"
#include "data/text/text_files.h"
#include "data/text/text_parts.h"
#include "data/tokenizer/document_marks.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

// Where the training part of a text ends, in bytes.
size_t SplitPosition(std::string_view text, const Tokenizer& tokenizer, double val_fraction) {
  if (tokenizer.name() == "byte") {
    return TrainCount(static_cast<int64_t>(text.size()), val_fraction);
  }
  return Utf8Offset(text, TrainCount(CountUtf8(text), val_fraction));
}

void RequireUtf8(std::string_view text, const std::string& name) {
  RequireNoBinary(text.substr(0, kTextSampleBytes), name);
  const size_t valid = ValidUtf8Prefix(text);
  if (valid == text.size()) return;
  throw InputError(StrCat(name, ": not UTF-8: ", DescribeByte(text, valid),
                          ". Convert the file (iconv -f latin1 -t utf-8), or use its bytes, with "
                          "--data.tokenizer=byte. The names of token files must end in .bin"));
}

// Encodes a large text in pieces, on all threads, so that little more than its tokens is in memory;
// unless the tokenizer needs the whole.
std::shared_ptr<const TokenSource> EncodePart(const Tokenizer& tokenizer, std::string_view text,
                                              size_t begin, size_t end, const std::string& name) {
  constexpr size_t kPieceBytes = size_t{1} << 23;
  std::vector<size_t> cuts = {begin};
  while (end - cuts.back() > kPieceBytes && (cuts.size() > 1 || EncodesInParts(tokenizer))) {
    cuts.push_back(std::min(end, FindTextCut(text, cuts.back() + kPieceBytes, end)));
  }
  if (cuts.size() == 1 || cuts.back() < end) cuts.push_back(end);
  std::vector<std::shared_ptr<const TokenSource>> pieces(cuts.size() - 1);
  ParallelFor(std::ssize(pieces), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      try {
        const std::string_view piece = text.substr(cuts[i], cuts[i + 1] - cuts[i]);
        std::vector<int32_t> ids;
        i == 0 ? tokenizer.EncodeTo(piece, &ids) : tokenizer.EncodeRestTo(piece, &ids);
        pieces[i] = std::make_shared<MemoryTokens>(ids);
      } catch (const InputError& error) {
        throw InputError(StrCat(name, ", from byte ", cuts[i], ": ", error.what()));
      }
    }
  });
  return pieces.size() == 1 ? pieces[0] : std::make_shared<TokenConcatenation>(std::move(pieces));
}

std::string TokenizerChoice(const DatasetOptions& options) {
  if (options.tokenizer.empty() && !options.no_tokenizer.empty()) {
    throw InputError(StrCat(options.no_tokenizer,
                            ". Text needs the tokenizer of the weights: name it with "
                            "--data.tokenizer=, a folder, a file, byte or gpt2"));
  }
  return options.tokenizer.empty() ? "char" : options.tokenizer;
}

// A char tokenizer is made from the text; others are there before it.
bool MakesCharTokenizer(const DatasetOptions& options) {
  return !options.loaded_tokenizer && TokenizerChoice(options) == "char";
}

// For a document that is too large to be read here.
std::string LargeDocumentAdvice(const DatasetOptions& options,
                                const std::vector<std::string>& files) {
  std::string tokenizer = StrCat("--data.tokenizer=", TokenizerChoice(options));
  if (options.loaded_tokenizer) {
    tokenizer = options.loaded_tokenizer->name() == "byte"
                    ? "--data.tokenizer=byte"
                    : "--data.tokenizer=FOLDER_WITH_ITS_TOKENIZER";
  } else if (MakesCharTokenizer(options)) {
    tokenizer = "--train_tokenizer=4096";  // a char tokenizer is made of text that is in memory
  }
  const bool any_rows = std::ranges::any_of(files, IsJsonLinesName);
  const bool any_text = !std::ranges::all_of(files, IsJsonLinesName);
  return StrCat("prepare it: prepare --data.path='", options.path, "'",
                any_rows ? " --data.field=" + options.field : "",
                any_text ? " --data.document=paragraph" : "",
                " --data.max_document_bytes=", 8 * TextOptions().max_document_bytes, " ", tokenizer,
                " --out_dir=tokens, and train with --data.path=tokens");
}

// The tokenizer of raw text, which must fit the model.
void SetTokenizer(std::string_view text, const DatasetOptions& options, Dataset* dataset) {
  dataset->tokenizer = options.loaded_tokenizer;
  if (dataset->tokenizer == nullptr) {
    dataset->tokenizer = MakeTokenizer(TokenizerChoice(options), text);
  }
  dataset->vocab_size = dataset->tokenizer->vocab_size();
  if (options.vocab_size == 0 || dataset->vocab_size <= options.vocab_size) return;
  if (options.trained && options.loaded_tokenizer) return;  // it may have tokens that do not occur
  throw InputError(StrCat(dataset->name, ": the ", dataset->tokenizer->name(), " tokenizer has ",
                          dataset->vocab_size, " tokens", TooMany(dataset->vocab_size, options)));
}

std::string NoteOnMalformed(const DatasetOptions& options, int64_t bad_utf8) {
  if (bad_utf8 == 0) return "";
  return StrCat(options.path, ": ", bad_utf8, " malformed parts of UTF-8 became U+FFFD");
}

// Tokens in memory whose documents are known.
class DocumentTokens : public TokenSource {
 public:
  DocumentTokens(std::vector<std::shared_ptr<const TokenSource>> parts,
                 std::vector<uint64_t> starts)
      : tokens_(std::move(parts)), starts_(std::move(starts)) {}
  int64_t size() const override { return tokens_.size(); }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override { tokens_.Read(offset, out); }
  std::span<const uint64_t> document_starts() const override { return starts_; }
  const TokenConcatenation tokens_;
  const std::vector<uint64_t> starts_;
};

// Encodes documents, with what stands around them in llm.c's format (MarksOf). Keeps their tokens
// in blocks, so that none are copied to make room for more.
class DocumentEncoder {
 public:
  explicit DocumentEncoder(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {
    if (tokenizer_ != nullptr) marks_ = MarksOf(*tokenizer_, /*nanogpt=*/false);
  }

  // `first`: it begins a document; else it continues the last one.
  void Add(std::string_view text, bool first) {
    if (first) {
      EndDocument();
      starts_.push_back(closed_tokens_ + open_.size());
      open_.insert(open_.end(), marks_.before.begin(), marks_.before.end());
      tokenizer_->EncodeTo(text, &open_);
    } else {
      tokenizer_->EncodeRestTo(text, &open_);
    }
    if (open_.size() >= kBlockTokens) Close();
  }
  std::shared_ptr<const TokenSource> Finish() {
    EndDocument();
    Close();
    return std::make_shared<DocumentTokens>(std::move(closed_), std::move(starts_));
  }

 private:
  static constexpr size_t kBlockTokens = size_t{1} << 20;

  void EndDocument() {
    if (!starts_.empty()) open_.insert(open_.end(), marks_.after.begin(), marks_.after.end());
  }
  void Close() {
    closed_.push_back(std::make_shared<MemoryTokens>(open_));
    closed_tokens_ += open_.size();
    open_.clear();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  DocumentMarks marks_;
  std::vector<int32_t> open_;
  std::vector<std::shared_ptr<const TokenSource>> closed_;
  uint64_t closed_tokens_ = 0;
  std::vector<uint64_t> starts_;
};

}  // namespace

Dataset FromText(std::string_view text, const std::string& name, const DatasetOptions& options) {
  Dataset dataset;
  dataset.name = name;
  dataset.fingerprint = Sha256Of(text);
  const bool is_char = MakesCharTokenizer(options);
  if (!is_char) SetTokenizer("", options, &dataset);
  const bool is_text = is_char || dataset.tokenizer->name() != "byte";
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (is_text && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (text.empty()) throw InputError(StrCat(name, ": the file is empty; expected text"));
  if (is_text) RequireUtf8(text, name);
  if (is_char) SetTokenizer(text, options, &dataset);
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

Dataset FromDocuments(const DatasetOptions& options) {
  const std::vector<std::string> files = ListTextFiles(std::vector{options.path});
  Dataset dataset;
  dataset.name = options.path;
  // A char tokenizer is made from all texts, which wait for it in memory.
  const bool waits = MakesCharTokenizer(options);
  if (!waits) SetTokenizer("", options, &dataset);
  TextOptions text_options{.type_advice = kTypeAdvice,
                           .field = options.field,
                           .any_bytes = !waits && dataset.tokenizer->name() == "byte",
                           .large_document_advice = LargeDocumentAdvice(options, files)};
  // Only larger files come in pieces.
  if (waits || EncodesInParts(*dataset.tokenizer)) {
    text_options.piece_bytes = text_options.max_document_bytes / 8 * 7;
  }
  DocumentReader reader(files, text_options);
  int64_t bad_utf8 = 0;
  // Reads the next text, or piece of one, that is not empty; false at the end.
  const auto next = [&](std::string* text, bool* first) {
    for (RawDocument document; reader.Next(&document);) {
      *first = document.first();
      DocumentText found = TextOf(std::move(document), files, text_options);
      bad_utf8 += found.bad_utf8;
      *text = std::move(found.text);
      if (!text->empty()) return true;
    }
    return false;
  };
  std::string text, following;
  bool first = true, following_first = true;
  if (!next(&text, &first)) throw InputError(StrCat(options.path, ": there is no text in it"));
  bool more = next(&following, &following_first);
  if (files.size() == 1 && !more) {
    DatasetOptions with_tokenizer = options;
    with_tokenizer.loaded_tokenizer = dataset.tokenizer;
    dataset = FromText(text, options.path, with_tokenizer);
    dataset.note = NoteOnMalformed(options, bad_utf8);
    return dataset;
  }
  std::string all;
  std::vector<std::pair<size_t, bool>> sizes;  // of texts, and whether they begin a document
  DocumentEncoder encoder(dataset.tokenizer);
  Sha256 hash;
  for (bool at_end = false; !at_end;) {
    const uint64_t size = text.size();
    hash.Update(std::as_bytes(std::span(&size, 1)));
    hash.Update(std::as_bytes(std::span(text)));
    if (waits) {
      all += text;
      sizes.emplace_back(size, first);
    } else {
      encoder.Add(text, first);
    }
    at_end = !more;
    text.swap(following);
    first = following_first;
    more = more && next(&following, &following_first);
  }
  dataset.note = NoteOnMalformed(options, bad_utf8);
  if (waits) {
    SetTokenizer(all, options, &dataset);
    encoder = DocumentEncoder(dataset.tokenizer);
    std::string_view rest = all;
    for (const auto& [size, begins] : sizes) {
      encoder.Add(rest.substr(0, size), begins);
      rest.remove_prefix(size);
    }
  }
  // Documents with a bos have other tokens than those of earlier versions, whose runs can't be
  // continued.
  const DocumentMarks marks = MarksOf(*dataset.tokenizer, /*nanogpt=*/false);
  if (!marks.after.empty()) hash.Update(std::as_bytes(std::span(marks.before)));
  dataset.fingerprint = hash.HexDigest();
  dataset.train = encoder.Finish();
  HoldOut(options.val_fraction, &dataset);
  return dataset;
}

}  // namespace lockstep::data
