#include "data/conversations/content_parts.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::data {
namespace {

bool HasParts(const OrderedJson& message) {
  return message.contains("content") && message["content"].is_array();
}

bool KnowsParts(const ChatTemplate& chat_template, const OrderedJson& variables) try {
  const auto render = [&](const OrderedJson& content) {
    const OrderedJson messages = {{{"role", "user"}, {"content", content}},
                                  {{"role", "assistant"}, {"content", content}}};
    return chat_template.Render(messages, variables, false).text;
  };
  return render("Hi") == render({{{"type", "text"}, {"text", "Hi"}}});
} catch (const InputError&) {
  return false;
}

}  // namespace

std::string JoinParts(const OrderedJson& content) {
  if (content.is_string()) return content;
  std::string text;
  for (const OrderedJson& part : content) text += part["text"].string();
  return text;
}

Conversation WithPartsFor(const ChatTemplate& chat_template, Conversation conversation) {
  if (std::ranges::none_of(conversation.messages, HasParts) ||
      KnowsParts(chat_template, conversation.variables)) {
    return conversation;
  }
  for (OrderedJson& message : conversation.messages) {
    if (HasParts(message)) message["content"] = JoinParts(message["content"]);
  }
  return conversation;
}

}  // namespace lockstep::data
