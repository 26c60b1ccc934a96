// A conversation as text, and where in it the assistant speaks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/conversations/conversation.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

struct RenderedConversation {
  std::string text;
  // What the model learns to write, in order: each answer from where the generation prompt ends to
  // the end of its end token ("<|im_end|>"). Bytes of `text`.
  std::vector<chat::ByteSpan> answers;
  // FindGiven.
  std::vector<chat::ByteSpan> given;
};

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

// The contents in `text` of messages that are not the assistant's, in order, if any of them spells
// a special token; `text` is what the template makes of the messages, with a generation prompt or
// not.
std::vector<chat::ByteSpan> FindGiven(const ChatTemplate& chat_template,
                                      const ControlTokens& control,
                                      const Conversation& conversation, const std::string& text,
                                      bool generation_prompt);

// Renders the conversation once. Answers are what {% generation %} blocks wrote. A template without
// them is run a second time on messages with marks around their contents: without its marks that
// text must be the first one, so that the marks say where contents lie in it. Prefixes of the
// conversation are only used for the text after their last message, the generation prompt: they
// need not be prefixes of the text (Qwen3's template drops what was thought in earlier turns).
//
// Throws InputError that begins with the conversation's place if the template fails, if an answer
// cannot be found in the text, and if no special token ends it.
RenderedConversation RenderConversation(const ChatTemplate& chat_template,
                                        const ControlTokens& control,
                                        const Conversation& conversation);

}  // namespace lockstep::data
