// Pairs of answers, one of them preferred, in files of JSONL.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "data/conversations/conversation.h"

namespace lockstep::data {

// The same messages with either answer. Only answers are learnt, and only what is not in both.
struct PreferencePair {
  Conversation chosen, rejected;
};

// Whether a row has the keys of ToPreferencePair.
bool LooksLikePreferencePair(const nlohmann::ordered_json& row);

// Reads a row of the formats that TRL's DPO takes:
// - {"prompt": "...", "chosen": "...", "rejected": "..."}: a user's message and two answers; each
//   of the three may also be a list of messages;
// - {"chosen": [...], "rejected": [...]}: lists that begin with the same messages, the prompt, and
//   end with an answer each. A "prompt" next to lists that do not begin with an answer only repeats
//   what they contain.
// Both may have "system", "tools" and "chat_template_kwargs" like ToConversation's rows. Throws
// InputError that begins with `place` for other rows, for what ToConversation refuses in a message,
// and where an answer is missing.
PreferencePair ToPreferencePair(const nlohmann::ordered_json& row, const std::string& place);

}  // namespace lockstep::data
