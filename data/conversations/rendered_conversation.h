// A conversation as text, and where in it the assistant speaks.
#pragma once

#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/conversations/control_tokens.h"
#include "data/conversations/conversation.h"

namespace lockstep::data {

struct RenderedConversation {
  std::string text;
  // What the model learns to write, in order: each answer from where the generation prompt ends to
  // the end of its end token ("<|im_end|>"). Bytes of `text`.
  std::vector<chat::ByteSpan> answers;
  // FindGiven.
  std::vector<chat::ByteSpan> given;
};

// The contents in `text` of messages that are not the assistant's, in order, if any of them spells
// a special token, and the special tokens that they spell elsewhere (in tools, or where the
// template has cut a content); `text` is what the template makes of the messages, with a generation
// prompt or not. Throws InputError if they cannot be found.
std::vector<chat::ByteSpan> FindGiven(const ChatTemplate& chat_template,
                                      const ControlTokens& control,
                                      const Conversation& conversation, const std::string& text,
                                      bool generation_prompt);

// Renders the conversation once. Answers are what {% generation %} blocks wrote. A template without
// them is run a second time on messages with marks around their contents: without the marks, that
// text must equal the first one, so that the marks say where contents lie in it. Prefixes of the
// conversation are only used for the text after their last message, the generation prompt: they
// need not be prefixes of the text (Qwen3's template drops what was thought in earlier turns).
//
// Throws InputError that begins with the conversation's place if the template fails, if an answer
// cannot be found in the text, if no special token ends it, and as FindGiven does, which is not
// called if users may write special tokens.
RenderedConversation RenderConversation(const ChatTemplate& chat_template,
                                        const ControlTokens& control,
                                        const Conversation& conversation,
                                        bool special_tokens_of_users = false);

}  // namespace lockstep::data
