// Tells text from files that only have a text's name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

// How many of a file's first bytes decide whether it is text.
inline constexpr size_t kTextSampleBytes = size_t{1} << 16;

// `beginning` are the first bytes of the file `name`, at most kTextSampleBytes of it. Throws
// InputError, which names the file and what to do, for UTF-16 and UTF-32, for formats such as
// Parquet, zip and PDF, and for a NUL byte.
void RequireNoBinary(std::string_view beginning, const std::string& name);

// The same, and also throws if more than three parts and more than 1% of the bytes are malformed
// UTF-8. Only the beginning decides: what is malformed after it is repaired and counted (TextOf),
// however much it is. With `lines` the error names the line as well.
void RequireText(std::string_view beginning, const std::string& name, bool lines);

// What the program's user can do about a file whose name does not tell what it holds.
struct TypeAdvice {
  std::string_view rows = "pass --data.type=jsonl to take the texts of its rows";
  std::string_view text = "pass --data.type=text to take it as it is";
};

// Throws InputError, which says how to make JSONL of it, if the name ends like that of a table:
// .csv, .tsv, .parquet or .arrow, also with .gz or .zst after it.
void RequireNoTable(const std::string& path, const TypeAdvice& advice = {});

// Throws InputError that ends with `advice` if the first line that is not blank begins and ends as
// a JSON object with a key, or continues beyond `beginning`, or if an array of such objects begins
// there, so that JSON is not taken for text by mistake.
void RequireNoJsonLines(std::string_view beginning, const std::string& name,
                        const TypeAdvice& advice);

// Throws InputError that begins with `place` if there is a NUL byte. `offset`: of `text` in the
// whole.
void RequireNoNul(std::string_view text, const std::string& place, int64_t offset = 0);

}  // namespace lockstep::data
