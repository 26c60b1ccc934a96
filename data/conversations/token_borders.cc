#include "data/conversations/token_borders.h"

#include <algorithm>
#include <optional>
#include <string>

namespace lockstep::data {
namespace {

// By the texts of the tokens, one after the other; none if they are not the text.
std::optional<std::vector<int64_t>> ByTexts(const Tokenizer& tokenizer, std::string_view text,
                                            std::span<const int32_t> ids,
                                            std::span<const int64_t> borders) {
  std::vector<int64_t> first;
  int64_t at = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    while (first.size() < borders.size() && borders[first.size()] <= at) {
      first.push_back(static_cast<int64_t>(i));
    }
    const std::string token = tokenizer.TokenText(ids[i]);
    std::string_view bytes = token;
    const std::string_view left = text.substr(static_cast<size_t>(at));
    // Llama 2's tokenizers begin each piece with a space that the text does not have.
    if (!left.starts_with(bytes) && bytes.starts_with(' ')) bytes.remove_prefix(1);
    if (!left.starts_with(bytes)) return {};
    at += std::ssize(bytes);
  }
  if (at != std::ssize(text)) return {};
  first.resize(borders.size(), std::ssize(ids));
  return first;
}

// For tokenizers that change the text (NFC): by the tokens of what precedes each border. If these
// are not among the text's, a token lies across the border.
int64_t ByPrefix(const Tokenizer& tokenizer, std::string_view prefix, std::span<const int32_t> ids,
                 bool special_tokens) {
  const std::vector<int32_t> before =
      special_tokens ? tokenizer.EncodeWithSpecials(prefix) : tokenizer.Encode(prefix);
  const int64_t equal = std::ranges::mismatch(before, ids).in1 - before.begin();
  return equal == std::ssize(before) ? equal : std::min(equal + 1, std::ssize(ids));
}

}  // namespace

std::vector<int64_t> FirstTokensAt(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const int32_t> ids, bool special_tokens,
                                   std::span<const int64_t> borders) {
  if (auto first = ByTexts(tokenizer, text, ids, borders)) return *first;
  std::vector<int64_t> first;
  for (const int64_t border : borders) {
    first.push_back(border == std::ssize(text)
                        ? std::ssize(ids)
                        : ByPrefix(tokenizer, text.substr(0, static_cast<size_t>(border)), ids,
                                   special_tokens));
  }
  return first;
}

}  // namespace lockstep::data
