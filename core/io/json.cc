#include "core/io/json.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/strict_json.h"

namespace lockstep {
namespace {

// The message without the library's prefix, "[json.exception.parse_error.101] ".
std::string ReasonOf(const nlohmann::json::exception& error) {
  const std::string what = error.what();
  const size_t end = what.starts_with("[json.exception.") ? what.find("] ") : std::string::npos;
  return end == std::string::npos ? what : what.substr(end + 2);
}

}  // namespace

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMaxBytes ? "...\"" : "\"");
}

nlohmann::json ParseJson(std::string_view text, std::string_view source, int max_depth) {
  using Json = nlohmann::json;
  const auto fail = [&](const std::string& what) { throw InputError(StrCat(source, ": ", what)); };
  try {
    return Json::parse(text.begin(), text.end(), StrictJson<Json>(max_depth, fail));
  } catch (const Json::parse_error& error) {
    throw InputError(
        StrCat(source, ": not valid JSON at byte ", error.byte, ": ", ReasonOf(error)));
  } catch (const Json::exception& error) {  // a number out of range
    throw InputError(StrCat(source, ": this JSON cannot be read: ", ReasonOf(error)));
  }
}

nlohmann::json TryParseJson(std::string_view text) {
  return nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

int64_t IntegerOf(const nlohmann::json& value, int64_t least, int64_t most) {
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= INT64_MAX : value.is_number_integer();
  if (!fits) {
    throw InputError(StrCat(DumpJson(value),
                            value.is_number_integer() ? " is too large" : " is not an integer"));
  }
  const auto integer = value.get<int64_t>();
  if (integer < least || integer > most) {
    throw InputError(StrCat(integer, " is not between ", least, " and ", most));
  }
  return integer;
}

std::vector<int64_t> IntegersOf(const nlohmann::json& array) {
  if (!array.is_array()) throw InputError(StrCat(DumpJson(array), " is not a list"));
  std::vector<int64_t> integers;
  for (const nlohmann::json& value : array) integers.push_back(IntegerOf(value));
  return integers;
}

std::string DumpJson(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string DumpJson(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lockstep
