// Python's str, on UTF-8: everything counts code points, and Unicode's properties decide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data::chat {

bool IsSpace(uint32_t code);    // str.isspace
bool IsLetter(uint32_t code);   // str.isalpha
bool IsDecimal(uint32_t code);  // str.isdecimal
bool IsDigit(uint32_t code);    // str.isdigit
// str.islower and, with `upper`, str.isupper: at least one character has this case, and none has
// another.
bool IsCased(std::string_view text, bool upper);

std::vector<uint32_t> CodePoints(std::string_view text);
std::vector<std::string> Characters(std::string_view text);

// Case mappings of single characters (and of the German sharp s, in upper case SS). kTitleWords is
// the filter `title`: words begin after white space, hyphens and brackets only.
enum class Case { kLower, kUpper, kCapitalize, kTitle, kTitleWords };
std::string Recase(std::string_view text, Case to);

// Removes the characters of `set` (white space if absent) from both ends.
std::string_view Strip(std::string_view text, const std::optional<std::string>& set,
                       bool left = true, bool right = true);

// str.split: at `separator`, or at runs of white space if absent; at most `most` cuts if >= 0.
// `from_right` is str.rsplit.
std::vector<std::string> Split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t most, bool from_right = false);
std::vector<std::string> SplitLines(std::string_view text, bool keep_ends = false);

// str.replace: at most `most` times if >= 0. Throws before the result exceeds the limit of texts.
std::string Replace(std::string_view text, std::string_view old, std::string_view by, int64_t most);

// "'it'": repr of a str, as part of a larger repr.
std::string ReprText(std::string_view text);

}  // namespace lockstep::data::chat
