// The special tokens that a text spells.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// The special tokens of a tokenizer by their texts.
class ControlTokens {
 public:
  explicit ControlTokens(const Tokenizer& tokenizer);
  // The first of them in `text` at or after `from`, the longest if several begin there; empty if
  // there is none.
  chat::ByteSpan Find(std::string_view text, int64_t from = 0) const;

 private:
  std::vector<std::string> texts_;  // the longest first
  std::vector<bool> may_begin_;     // by byte
};

}  // namespace lockstep::data
