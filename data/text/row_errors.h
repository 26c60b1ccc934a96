// What is wrong with a line of JSONL, in words.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::data {

// The first names of `names`, quoted: "\"question\", \"answer\"".
std::string ListNames(std::span<const std::string> names);

// Whether a row that has the keys for which `has` is true is a conversation, in one of the formats
// of data/conversations/conversation.h.
bool IsConversation(const std::function<bool(const char*)>& has);

// What to write if a row with these keys is a conversation; "" if it is not.
std::string AdviceOnConversations(std::span<const std::string> names);

// What to write if a row with these keys is a pair of answers; "" if it is not.
std::string AdviceOnPairs(std::span<const std::string> names);

// "at byte 92: syntax error while parsing ...": the message of nlohmann's parser about one line,
// cut short, as it quotes what was read last, however long.
std::string ParseErrorText(std::string_view what);

}  // namespace lockstep::data
