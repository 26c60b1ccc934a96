#include "data/text/require_text.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/text/decompressor.h"
#include "data/text/repair_utf8.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

using std::string_view_literals::operator""sv;

struct Magic {
  std::string_view bytes, what, advice;
};

constexpr std::string_view kParquet = "PAR1";

constexpr Magic kMagics[] = {
    {kParquet, "a Parquet file", ""},
    {"PK\x03\x04"sv, "a zip archive (also .docx, .xlsx, .npz)", "unpack it"},
    {"%PDF-"sv, "a PDF file", "take its text out, with pdftotext"},
    {"\xfd\x37zXZ\0"sv, "compressed by xz", "decompress it, with unxz"},
    {"BZh91AY&SY"sv, "compressed by bzip2", "decompress it, with bunzip2"},
};

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

// A command that writes the rows of a table as JSONL.
std::string RowsCommand(std::string_view kind, const std::string& file) {
  if (kind == "Parquet" || kind == "Arrow") {
    return StrCat("python3 -c \"from datasets import Dataset; Dataset.from_",
                  kind == "Arrow" ? "file" : "parquet", "('", file, "').to_json('rows.jsonl')\"");
  }
  const std::string convert = StrCat("mlr -S --i", kind == "TSV" ? "tsv" : "csv", " --ojsonl cat");
  if (!HasCompressedName(file)) return StrCat(convert, " '", file, "' > rows.jsonl");
  return StrCat(file.ends_with(".zst") ? "zstdcat" : "zcat", " '", file, "' | ", convert,
                " > rows.jsonl");
}

}  // namespace

void RequireNoTable(const std::string& path, const TypeAdvice& advice) {
  constexpr std::pair<std::string_view, std::string_view> kTables[] = {
      {".csv", "CSV"}, {".tsv", "TSV"}, {".parquet", "Parquet"}, {".arrow", "Arrow"}};
  for (const auto& [suffix, kind] : kTables) {
    if (!WithoutCompressedSuffix(path).ends_with(suffix)) continue;
    const bool is_text = kind == "CSV" || kind == "TSV";
    throw InputError(StrCat(path, ": this has the name of a table (", kind, "). Write its rows as ",
                            "JSONL (", RowsCommand(kind, path), "), name rows.jsonl by ",
                            "--data.path and the column of its text by --data.field",
                            is_text ? StrCat(", or ", advice.text) : ""));
  }
}

void RequireNoJsonLines(std::string_view beginning, const std::string& name,
                        const TypeAdvice& advice) {
  const bool whole = beginning.size() < kTextSampleBytes;
  if (beginning.starts_with("\xef\xbb\xbf")) beginning.remove_prefix(3);
  constexpr std::string_view kSpace = " \t\r\n";
  beginning.remove_prefix(std::min(beginning.find_first_not_of(kSpace), beginning.size()));
  const bool array = beginning.starts_with('[');
  if (array) {
    beginning.remove_prefix(std::min(beginning.find_first_not_of(kSpace, 1), beginning.size()));
  }
  const size_t end = beginning.find('\n');
  const std::string_view line = beginning.substr(0, end);
  if (!line.starts_with('{')) return;
  const size_t key = (array ? beginning : line).find_first_not_of(kSpace, 1);
  if (key == std::string_view::npos || beginning[key] != '"') return;
  const bool cut = end == std::string_view::npos && !whole;
  if (!array && !cut && line[line.find_last_not_of(kSpace)] != '}') return;
  throw InputError(StrCat(name,
                          array ? ": it begins like a JSON array of objects"
                                : ": its first line looks like a JSON object, as in JSONL",
                          ", but it would be taken as plain text: ", advice.rows, ", or ",
                          advice.text));
}

void RequireNoNul(std::string_view text, const std::string& place, int64_t offset) {
  const size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return;
  throw InputError(StrCat(place, ": byte ", offset + static_cast<int64_t>(nul),
                          " is NUL, so this is a binary file, or damaged text. Remove the zeros "
                          "(tr -d '\\0'), or leave it out, with a pattern such as 'folder/*.txt'"));
}

void RequireNoBinary(std::string_view beginning, const std::string& name) {
  for (const Magic& magic : kMagics) {
    if (!beginning.starts_with(magic.bytes)) continue;
    throw InputError(StrCat(name, ": this is ", magic.what, ", but text is expected here: ",
                            magic.bytes == kParquet ? StrCat("write its rows as JSONL (",
                                                             RowsCommand("Parquet", "FILE"), ")")
                                                    : std::string(magic.advice),
                            ", or leave the file out"));
  }
  if (const std::string wide = WideEncodingOf(beginning); !wide.empty()) {
    throw InputError(StrCat(name, ": this is ", wide,
                            ", but text must be UTF-8. Convert it: iconv -f ", wide, " -t utf-8 ",
                            name, " > utf-8.txt"));
  }
  RequireNoNul(beginning, name);
}

void RequireText(std::string_view beginning, const std::string& name, bool lines) {
  RequireNoBinary(beginning, name);
  const size_t valid = ValidUtf8Prefix(beginning);
  if (valid == beginning.size()) return;
  std::string copy(beginning);
  const int64_t bad = RepairUtf8(&copy);
  if (bad <= 3 || 100 * bad <= static_cast<int64_t>(beginning.size())) return;
  const auto line = std::ranges::count(beginning.substr(0, valid), '\n') + 1;
  throw InputError(StrCat(name, lines ? StrCat(":", line) : "", ": this is not UTF-8: ", bad,
                          " parts of the first ", beginning.size(),
                          " bytes of the file are malformed, the first at byte ", valid,
                          ". Convert the file (iconv -f latin1 -t utf-8), or leave it out"));
}

}  // namespace lockstep::data
