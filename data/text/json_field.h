// A string in a line of JSONL.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep::data {

struct JsonText {
  std::string text;
  // Malformed UTF-8 and lone surrogates (\ud800 without its other half), anywhere in the line, that
  // became U+FFFD.
  int64_t repaired = 0;
};

// The string `field` of the object that `line` consists of, as well-formed UTF-8; null counts as an
// empty string. Builds nothing else from the line, so that memory is bounded by it and depth costs
// none. Throws InputError that starts with what `place` returns, which is called only then, if the
// line is not an object in JSON, if it is nested deeper than 512 levels, or if the field is
// missing, not a string, or there twice. A line with kJsonPadding bytes of capacity beyond its size
// is not copied.
inline constexpr size_t kJsonPadding = 64;
JsonText JsonField(std::string line, std::string_view field,
                   const std::function<std::string()>& place);

}  // namespace lockstep::data
