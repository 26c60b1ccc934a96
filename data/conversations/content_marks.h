// Where the contents of messages lie in a rendered text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "data/chat/chat_template.h"
#include "data/conversations/control_tokens.h"
#include "data/conversations/conversation.h"

namespace lockstep::data {

// The white space that a message's last text ends with.
std::string SpaceAtEnd(const OrderedJson& message);

// The bytes of the text that hold a content without the white space around it; none if marking it
// would have changed the text, or if the template shows it never or twice.
struct ContentPlace {
  std::optional<int64_t> begin;
  // For a message that calls tools: a position within its last call.
  std::optional<int64_t> end;
};

// One place for each message. `text` is what the template makes of the messages.
std::vector<ContentPlace> FindContents(const ChatTemplate& chat_template,
                                       const Conversation& conversation, const std::string& text,
                                       bool generation_prompt);

// Where in `text` the template writes special tokens that these messages, or the tools, spell,
// however it has cut them; none if marking them would have changed the text.
std::optional<std::vector<chat::ByteSpan>> FindTokens(const ChatTemplate& chat_template,
                                                      const ControlTokens& control,
                                                      const Conversation& conversation,
                                                      const std::vector<size_t>& messages,
                                                      const std::string& text,
                                                      bool generation_prompt);

// What the template makes of messages with a generation prompt; none if it refuses them.
std::optional<std::string> PromptOf(const ChatTemplate& chat_template, const OrderedJson& messages,
                                    const OrderedJson& variables);
// The part of that after the content of the last message; none if it can't be told.
std::optional<std::string> TextAfter(const ChatTemplate& chat_template, const OrderedJson& messages,
                                     const OrderedJson& variables);

}  // namespace lockstep::data
