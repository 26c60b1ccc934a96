// The documents of text files, one after the other, in memory that does not grow with the files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/decompressor.h"
#include "data/text/raw_input.h"
#include "data/text/require_text.h"

namespace lockstep::data {

// What a document is in a file of plain text. Lines end with \n or \r\n, in a paragraph with \n.
enum class DocumentUnit {
  kFile,
  kParagraph,  // what lies between lines of white space
  kLine,
};

// "file", "paragraph", "line"; anything else is an InputError.
DocumentUnit ParseDocumentUnit(const std::string& name);

struct TextOptions {
  // "text", "jsonl", or "auto": by the file's name (IsJsonLinesName). Everything else is text,
  // except that an input which begins as JSONL without the name of a text (IsTextName), such as
  // standard input, is an InputError, and so is a file with the name of a table (RequireNoTable).
  std::string type = "auto";
  TypeAdvice type_advice = {};  // for these errors
  DocumentUnit unit = DocumentUnit::kFile;
  // JSONL: the field whose string is the document.
  std::string field = "text";
  // Text is any bytes, as a byte tokenizer takes them: none are refused, replaced or dropped. JSONL
  // is UTF-8 in any case.
  bool any_bytes = false;
  // A document, or a line of JSONL, of more bytes is an InputError.
  int64_t max_document_bytes = int64_t{128} << 20;
  // A file that is one document is returned in pieces of about this many bytes, cut at FindTextCut
  // (data/text/text_parts.h). It may have any size; if there is no place to cut within
  // max_document_bytes, or a smaller number of bytes after piece_bytes, that is an InputError. 0:
  // it is returned as a whole.
  int64_t piece_bytes = 0;
  // The end of that error: what the program's user can do. If empty, options of `prepare`.
  std::string large_document_advice = {};
  // Receives messages about what is unusual but not an error.
  std::function<void(const std::string&)> warn = {};
};

// A place among the documents: the next one is the first at or after it.
struct TextPosition {
  int64_t file = 0;    // its index in the list of files
  int64_t record = 0;  // in that file: lines of JSONL or text, paragraphs, or 0
  int64_t piece = 0;   // of that record
  auto operator<=>(const TextPosition&) const = default;
};

// A document, or a piece of one, as it was read: TextOf decodes it.
struct RawDocument {
  std::string bytes;
  TextPosition position;
  bool json = false;
  bool last = true;    // no other piece of the document follows
  int64_t offset = 0;  // bytes of its earlier pieces

  bool first() const { return position.piece == 0; }
};

// A file that has been read to its end, unless a comment says otherwise.
struct SourceFile {
  std::string path;
  int64_t bytes = 0;   // as it lies there: compressed, if it is
  std::string sha256;  // of those bytes
  // When it was last changed, in nanoseconds since 1970; 0: not known, as of standard input.
  int64_t modified_ns = 0;
  // If the file has been read in part: how many bytes, and their hash.
  int64_t read_bytes = 0;
  std::string read_sha256 = {};
  // Whether it is a text that would be one document, but contains none.
  bool empty = false;
};

class DocumentReader {
 public:
  // `files` as ListTextFiles returns them. Reading from the middle of a file reads its beginning,
  // too, but does not decode it. InputError for an unknown type, and for a file that type="auto"
  // does not cover.
  DocumentReader(std::vector<std::string> files, TextOptions options, TextPosition start = {});
  ~DocumentReader();

  // Reads the next document, or piece of one; false at the end. Blank lines of JSONL and empty
  // documents of text are skipped, but lines count, and finished() tells which files are empty; a
  // byte-order mark at a file's start is dropped. Throws InputError that names file and line for a
  // document above the limit and for damaged compressed data, for a JSON array in place of JSONL,
  // for a file whose beginning is not UTF-8 text (RequireText; malformed parts of what follows are
  // only counted), and IoError.
  bool Next(RawDocument* document);

  // Where the document after the last one begins, or a position before it.
  TextPosition position() const { return next_; }
  // How many bytes of the open file have been read, as they lie there, and their hash; 0 and ""
  // between files.
  int64_t bytes_of_open_file() const;
  std::string sha256_of_open_file() const;
  // The files from start.file on that have been read to their ends.
  const std::vector<SourceFile>& finished() const { return finished_; }

 private:
  bool MustBeDeclared(const std::string& path) const;
  void RequireDeclared(const std::string& path, std::string_view beginning) const;
  bool OpenNext();
  bool ReadMore();
  std::string_view Unread() const { return {buffer_.data() + begin_, end_ - begin_}; }
  bool NextRecord(std::string* bytes);
  bool NextLine(size_t before, std::string_view* line);
  bool NextPiece(std::string* piece);
  [[noreturn]] void FailTooLarge(int64_t most) const;

  const std::vector<std::string> files_;
  const TextOptions options_;
  TextPosition next_;
  std::optional<RawInput> input_;  // none between files
  std::unique_ptr<Decompressor> text_;
  bool json_ = false;
  bool whole_ = false;  // the file is one record
  bool last_ = true;    // NextRecord has read a record to its end
  int64_t offset_ = 0;  // bytes of the open record's pieces so far
  // Decompressed: what is not yet returned lies in [begin_, end_).
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
  std::vector<SourceFile> finished_;
};

struct DocumentText {
  std::string text;
  int64_t bad_utf8 = 0;  // malformed parts that became U+FFFD
};

// The text of a document, in well-formed UTF-8 unless any_bytes is set. Throws InputError with file
// and line as JsonField does, and for a NUL byte in text. Thread-safe.
DocumentText TextOf(RawDocument document, const std::vector<std::string>& files,
                    const TextOptions& options);

}  // namespace lockstep::data
