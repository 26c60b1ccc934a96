// Makes any bytes well-formed UTF-8.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::data {

// Replaces each maximal malformed part by U+FFFD, as the Unicode standard recommends and Python's
// errors="replace" does, and returns their number.
int64_t RepairUtf8(std::string* text);

}  // namespace lockstep::data
