// A string in a line of JSONL.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

struct JsonText {
  std::string text;
  int64_t repaired = 0;  // lone surrogates (\ud800 without its other half) that became U+FFFD
};

// The string `field` of the object that `line`, well-formed UTF-8, consists of. Builds nothing else
// of it, so that memory is bounded by the line and depth costs none. Throws InputError that starts
// with `place` if the line is not an object in JSON, if it is nested deeper than 512 levels, or if
// the field is missing, no string, or there twice.
JsonText JsonField(std::string line, std::string_view field, const std::string& place);

}  // namespace lockstep::data
