// What Python's str methods do to text, where the rules of tasks call them. All text is UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

// str.rstrip() and str.strip(): without white space, which is what str.isspace() says, of any
// script.
std::string_view StripRight(std::string_view text);
std::string_view Strip(std::string_view text);
// str.capitalize(): the first character in title case, all others in lower case, one by one. It
// differs from Python for the few characters that become several ('ß' at the start) or whose lower
// case depends on their neighbours (Greek sigma).
std::string Capitalize(std::string_view text);
// text.replace(from, to).
std::string Replace(std::string_view text, std::string_view from, std::string_view to);
// len(re.split(r"\s+", text)): white space at either end counts as a word of its own.
int64_t CountWords(std::string_view text);

}  // namespace lockstep::models
