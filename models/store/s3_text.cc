#include "models/store/s3_text.h"

#include <charconv>
#include <utility>

#include "core/error.h"

namespace lockstep::models {
namespace {

constexpr std::string_view kHex = "0123456789ABCDEF";

// The text of which XML is made: the five named entities. Others do not occur where keys are
// percent-encoded.
std::string Unescaped(std::string_view xml) {
  constexpr std::pair<std::string_view, char> kEntities[] = {{"&lt;", '<'},   {"&gt;", '>'},
                                                             {"&quot;", '"'}, {"&apos;", '\''},
                                                             {"&#34;", '"'},  {"&amp;", '&'}};
  std::string text;
  while (!xml.empty()) {
    size_t length = 1;
    char c = xml[0];
    for (const auto& [entity, value] : kEntities) {
      if (!xml.starts_with(entity)) continue;
      length = entity.size();
      c = value;
      break;
    }
    text += c;
    xml.remove_prefix(length);
  }
  return text;
}

}  // namespace

std::string PercentEncoded(std::string_view text, bool slash) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string encoded;
  for (const char c : text) {
    if (kPlain.find(c) != std::string_view::npos || (slash && c == '/')) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += {'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return encoded;
}

std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

std::vector<std::string> ElementsOf(std::string_view xml, std::string_view tag) {
  const std::string open = StrCat("<", tag, ">"), close = StrCat("</", tag, ">");
  std::vector<std::string> all;
  for (;;) {
    const size_t begin = xml.find(open);
    if (begin == xml.npos) return all;
    xml.remove_prefix(begin + open.size());
    const size_t end = xml.find(close);
    if (end == xml.npos) return all;
    all.emplace_back(xml.substr(0, end));
    xml.remove_prefix(end + close.size());
  }
}

std::string ElementOf(std::string_view xml, std::string_view tag) {
  const auto all = ElementsOf(xml, tag);
  return all.empty() ? "" : Unescaped(all[0]);
}

}  // namespace lockstep::models
