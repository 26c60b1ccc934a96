// Makes any bytes well-formed UTF-8.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::data {

// Replaces each maximal malformed part by U+FFFD, as the Unicode standard recommends and Python's
// errors="replace" does, and returns their number.
int64_t RepairUtf8(std::string* text);

// The same for JSON, in which escapes of lone surrogates (\ud800 without its other half), which are
// not text and which parsers refuse, also become those of U+FFFD.
int64_t RepairJson(std::string* line);

}  // namespace lockstep::data
