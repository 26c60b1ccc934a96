// Where the contents of messages lie in a rendered text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/conversations/conversation.h"

namespace lockstep::data {

// Bytes of the text, of what remains of a content after white space around it is left out; none
// where marking it would have changed the text, or where the template shows it never or twice.
struct ContentPlace {
  std::optional<int64_t> begin;
  // For a message that calls tools: a place within its last call.
  std::optional<int64_t> end;
};

// One for each message. `text` is what the template makes of them.
std::vector<ContentPlace> FindContents(const ChatTemplate& chat_template,
                                       const Conversation& conversation, const std::string& text,
                                       bool generation_prompt);

// What the template writes after the content of the last of the first `count` messages, with a
// generation prompt; none where it can't be told.
std::optional<std::string> TextAfter(const ChatTemplate& chat_template,
                                     const Conversation& conversation, size_t count);

}  // namespace lockstep::data
