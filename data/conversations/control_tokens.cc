#include "data/conversations/control_tokens.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "core/io/json.h"

namespace lockstep::data {

using chat::ByteSpan;

ControlTokens::ControlTokens(const Tokenizer& tokenizer) : may_begin_(256) {
  const Json json = ParseJson(tokenizer.ToJson(), "the tokenizer");
  for (const auto& token : json.value("added_tokens", Json::array())) {
    if (!token.value("special", false)) continue;
    texts_.push_back(token.at("content").get<std::string>());
    if (texts_.back().empty()) texts_.pop_back();
  }
  std::ranges::stable_sort(texts_, std::greater(), &std::string::size);
  for (const std::string& text : texts_) may_begin_[static_cast<uint8_t>(text[0])] = true;
}

ByteSpan ControlTokens::Find(std::string_view text, int64_t from) const {
  for (auto i = static_cast<size_t>(from); i < text.size(); ++i) {
    if (!may_begin_[static_cast<uint8_t>(text[i])]) continue;
    for (const std::string& token : texts_) {
      if (!text.substr(i).starts_with(token)) continue;
      return {static_cast<int64_t>(i), static_cast<int64_t>(i + token.size())};
    }
  }
  return {std::ssize(text), std::ssize(text)};
}

}  // namespace lockstep::data
