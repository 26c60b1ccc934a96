// Contents that are lists of parts: [{"type": "text", "text": "..."}].
#pragma once

#include <string>

#include "core/io/json.h"
#include "data/chat/chat_template.h"
#include "data/conversations/conversation.h"

namespace lockstep::data {

// The texts of a list of parts, one after the other; a plain text counts as a list of one.
std::string JoinParts(const OrderedJson& content);

// Returns the conversation with its lists of parts joined, unless the template writes a part as it
// writes a text.
Conversation WithPartsFor(const ChatTemplate& chat_template, Conversation conversation);

}  // namespace lockstep::data
