// JSON in and out, compiled once: each file that instantiates nlohmann's parser or serializer pays
// seconds for it.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Parses one JSON value. Beyond nlohmann's own checks (syntax, UTF-8), rejects duplicate keys,
// which nlohmann would silently drop, and nesting deeper than max_depth. InputError names `source`
// (the file) and the byte or key.
nlohmann::json ParseJson(std::string_view text, std::string_view source, int max_depth = 32);

// For lines that a crash may have cut short: if the text is not JSON, the result is_discarded() (so
// not is_object()).
nlohmann::json TryParseJson(std::string_view text);

// The value if it is an integer from `least` to `most`; otherwise an InputError says what it is.
// nlohmann's own get<int>() takes 1e30, which is undefined behaviour, and wraps 2^32 to 0.
int64_t IntegerOf(const nlohmann::json& value, int64_t least = std::numeric_limits<int64_t>::min(),
                  int64_t most = std::numeric_limits<int64_t>::max());

// The same for an array, element by element.
std::vector<int64_t> IntegersOf(const nlohmann::json& array);

// The value's text, on one line or with `indent` spaces per level. Bytes of strings that are not
// UTF-8 become U+FFFD.
std::string DumpJson(const nlohmann::json& value, int indent = -1);
std::string DumpJson(const nlohmann::ordered_json& value, int indent = -1);

// A short printable form of text from a file, in quotes, for error messages.
std::string Quoted(std::string_view text);

}  // namespace lockstep
