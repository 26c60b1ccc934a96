#include "data/text/document_reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "data/text/json_field.h"
#include "data/text/repair_utf8.h"
#include "data/text/require_text.h"
#include "data/text/text_files.h"
#include "data/text/text_parts.h"

namespace lockstep::data {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string NameOf(const std::string& file) { return file == "-" ? "standard input" : file; }

std::string PlaceOf(const std::string& file, int64_t record, bool json, DocumentUnit unit) {
  const bool lines = json || unit == DocumentUnit::kLine;
  if (!lines && unit == DocumentUnit::kFile) return NameOf(file);
  return StrCat(NameOf(file), lines ? ":" : ", paragraph ", record + 1);
}

std::string BeginningOf(const std::string& path) {
  RawInput input(path);
  const auto text = Decompress(&input, [](const std::string&) {});
  std::string beginning(kTextSampleBytes, '\0');
  size_t size = 0;
  while (const size_t got =
             size < kTextSampleBytes ? text->Read(std::span(beginning).subspan(size)) : 0) {
    size += got;
  }
  beginning.resize(size);
  return beginning;
}

}  // namespace

DocumentUnit ParseDocumentUnit(const std::string& name) {
  if (name == "file") return DocumentUnit::kFile;
  if (name == "paragraph") return DocumentUnit::kParagraph;
  if (name == "line") return DocumentUnit::kLine;
  throw InputError(StrCat("data.document=", name, ": expected file, paragraph or line"));
}

DocumentReader::DocumentReader(std::vector<std::string> files, TextOptions options,
                               TextPosition start)
    : files_(std::move(files)), options_(std::move(options)), next_{start.file, 0} {
  if (options_.type != "auto" && options_.type != "text" && options_.type != "jsonl") {
    throw InputError(StrCat("data.type=", options_.type, ": expected auto, text or jsonl"));
  }
  LS_CHECK(options_.piece_bytes >= 0, "piece_bytes must be at least 0, got ", options_.piece_bytes);
  LS_CHECK(options_.max_document_bytes >= 1, "max_document_bytes must be at least 1, got ",
           options_.max_document_bytes);
  // Before much has been read; what cannot be read twice waits for its turn.
  for (const std::string& path : files_) {
    std::error_code error;  // opening it will tell
    const bool is_regular = std::filesystem::is_regular_file(path, error);
    if (MustBeDeclared(path) && is_regular) RequireDeclared(path, BeginningOf(path));
  }
  std::string passed_over;
  while (next_ < start && NextRecord(&passed_over)) {
  }
}

DocumentReader::~DocumentReader() = default;

bool DocumentReader::Next(RawDocument* document) {
  for (;;) {
    if (!input_ && !OpenNext()) return false;
    document->position = next_;
    document->json = json_;
    document->offset = offset_;
    if (!NextRecord(&document->bytes)) continue;  // the file's end
    document->last = last_;
    if (json_ ? !IsBlank(document->bytes) : !document->bytes.empty()) return true;
  }
}

bool DocumentReader::MustBeDeclared(const std::string& path) const {
  return options_.type == "auto" && !IsTextName(path);
}

// JSONL that is not called so, and a table, must be meant as text.
void DocumentReader::RequireDeclared(const std::string& path, std::string_view beginning) const {
  if (!MustBeDeclared(path)) return;
  RequireNoTable(path, options_.type_advice);
  RequireNoJsonLines(beginning, NameOf(path), options_.type_advice);
}

bool DocumentReader::OpenNext() {
  if (next_.file >= static_cast<int64_t>(files_.size())) return false;
  const std::string& path = files_[next_.file];
  input_.emplace(path);
  text_ = Decompress(&*input_, options_.warn);
  json_ = options_.type == "auto" ? IsJsonLinesName(path) : options_.type == "jsonl";
  whole_ = !json_ && options_.unit == DocumentUnit::kFile;
  at_end_ = false;
  while (end_ < kTextSampleBytes && ReadMore()) {
  }
  RequireDeclared(path, Unread().substr(0, kTextSampleBytes));
  if (json_ || !options_.any_bytes) {
    RequireText(Unread().substr(0, kTextSampleBytes), NameOf(path), json_);
    if (Unread().starts_with("\xef\xbb\xbf")) begin_ = 3;
  }
  const size_t first = Unread().find_first_not_of(" \t\r\n");
  if (json_ && first != std::string::npos && Unread()[first] == '[') {
    throw InputError(StrCat(NameOf(path), ": this is one JSON array, but each line must be an ",
                            "object of its own: write jq -c '.[]' ", NameOf(path),
                            " > rows.jsonl, and name rows.jsonl"));
  }
  return true;
}

// False at the end of the file. What has been returned makes room.
bool DocumentReader::ReadMore() {
  if (at_end_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  if (buffer_.size() < end_ + kReadBytes) {
    buffer_.resize(std::max(buffer_.size() * 3 / 2, end_ + kReadBytes));
  }
  const size_t got = text_->Read(std::span(buffer_).subspan(end_, kReadBytes));
  end_ += got;
  at_end_ = got == 0;
  return !at_end_;
}

// Reads the next record. False, with the file closed, if nothing is left of it.
bool DocumentReader::NextRecord(std::string* bytes) {
  if (!input_ && !OpenNext()) return false;
  const bool paragraphs = !json_ && options_.unit == DocumentUnit::kParagraph;
  bytes->clear();
  bool found = whole_ && NextPiece(bytes);
  for (std::string_view line; !whole_ && NextLine(found ? bytes->size() + 1 : 0, &line);) {
    const bool blank = paragraphs && IsBlank(line);
    if (blank && found) break;
    if (blank) continue;
    if (!json_ && line.ends_with('\r')) line.remove_suffix(1);
    if (found) *bytes += '\n';
    if (json_) bytes->reserve(line.size() + kJsonPadding);
    *bytes += line;
    found = true;
    if (!paragraphs) break;
  }
  if (found) {
    next_ = last_ ? TextPosition{next_.file, next_.record + 1}
                  : TextPosition{next_.file, next_.record, next_.piece + 1};
    return true;
  }
  finished_.push_back({.path = files_[next_.file],
                       .bytes = input_->bytes_read(),
                       .sha256 = input_->Sha256Hex(),
                       .empty = whole_ && next_ == TextPosition{.file = next_.file}});
  text_.reset();
  input_.reset();
  buffer_ = {};
  begin_ = end_ = 0;
  next_ = {next_.file + 1, 0};
  return false;
}

// Reads a line, without its '\n'. It is valid until the next call. False if nothing is left.
// `before`: bytes that the record has already.
bool DocumentReader::NextLine(size_t before, std::string_view* line) {
  size_t searched = 0;  // of what is unread
  for (;;) {
    const std::string_view unread = Unread();
    const size_t end = unread.find('\n', searched);
    const size_t length = std::min(end, unread.size());
    const bool fits = static_cast<int64_t>(before + length) <= options_.max_document_bytes;
    if (length > 0 && !fits) FailTooLarge(options_.max_document_bytes);
    if (end != std::string::npos) {
      *line = unread.substr(0, end);
      begin_ += end + 1;
      return true;
    }
    searched = unread.size();
    if (!ReadMore()) break;
  }
  *line = Unread();
  begin_ = end_;
  return !line->empty();
}

// Reads the next piece of a file that is one record. False if nothing is left.
bool DocumentReader::NextPiece(std::string* piece) {
  constexpr size_t kNone = std::string::npos;
  size_t from = options_.piece_bytes == 0 ? kNone : static_cast<size_t>(options_.piece_bytes);
  size_t end = kNone;
  int64_t most = options_.max_document_bytes;
  if (most <= options_.piece_bytes) most += options_.piece_bytes;
  for (;;) {
    const std::string_view unread = Unread();
    // A cut depends on what follows it, not on where reading stops.
    const size_t to = unread.size() - (at_end_ ? 0 : std::min(unread.size(), size_t{4}));
    if (from < to) end = FindTextCut(unread, std::exchange(from, to), to);
    const auto length = static_cast<int64_t>(std::min(end, unread.size()));
    if (length > most) FailTooLarge(most);
    if (end != kNone || at_end_) break;
    ReadMore();
  }
  last_ = end == kNone;
  piece->assign(Unread().substr(0, end));
  begin_ += piece->size();
  offset_ = last_ ? 0 : offset_ + std::ssize(*piece);
  return !piece->empty();
}

void DocumentReader::FailTooLarge(int64_t most) const {
  std::string advice = options_.large_document_advice;
  if (advice.empty()) {
    advice = StrCat("raise the limit, --data.max_document_bytes",
                    whole_ ? ", or let --data.document=paragraph or line cut the text" : "");
  }
  throw InputError(StrCat(PlaceOf(files_[next_.file], next_.record, json_, options_.unit),
                          whole_ && options_.piece_bytes > 0
                              ? ": no place to cut it, such as a space after a word, within "
                              : ": a document of more than ",
                          most, " bytes. Is the file what it should be? If so, ", advice));
}

int64_t DocumentReader::bytes_of_open_file() const { return input_ ? input_->bytes_read() : 0; }

std::string DocumentReader::sha256_of_open_file() const {
  return input_ ? input_->Sha256Hex() : "";
}

DocumentText TextOf(RawDocument document, const std::vector<std::string>& files,
                    const TextOptions& options) {
  const TextPosition& at = document.position;
  if (!document.json && options.any_bytes) return {.text = std::move(document.bytes)};
  if (!document.json) {
    if (document.bytes.find('\0') != std::string::npos) {
      RequireNoNul(document.bytes, PlaceOf(files[at.file], at.record, false, options.unit),
                   document.offset);
    }
    const int64_t bad = RepairUtf8(&document.bytes);
    return {std::move(document.bytes), bad};
  }
  JsonText found = JsonField(std::move(document.bytes), options.field, [&] {
    return PlaceOf(files[at.file], at.record, true, options.unit);
  });
  return {std::move(found.text), found.repaired};
}

}  // namespace lockstep::data
