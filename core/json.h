// Strict reading of JSON that may be damaged or hostile.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lockstep {

// Parses one JSON value. Beyond nlohmann's own checks (syntax, UTF-8) refuses duplicate keys, which
// nlohmann would drop silently, and nesting deeper than max_depth. InputError names `source` (the
// file), and the byte or the key.
nlohmann::json ParseJson(std::string_view text, std::string_view source, int max_depth = 32);

// A short printable form of text from a file, in quotes, for error messages.
std::string Quoted(std::string_view text);

}  // namespace lockstep
