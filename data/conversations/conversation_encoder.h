// Conversations as tokens, with the mask of what is learnt.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/conversations/conversation.h"
#include "data/conversations/rendered_conversation.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

struct EncodedConversation {
  std::vector<int32_t> ids;
  // For each id: 1 if the model learns to write it, 0 if it is given.
  std::vector<uint8_t> learnt;
};

// Thread-safe.
class ConversationEncoder {
 public:
  // With `special_tokens_of_users` a special token that a message of a user, of the system or of a
  // tool spells, such as "<|im_end|>", becomes that token, as in transformers; otherwise it stays
  // text. Answers may always write them ("<think>").
  ConversationEncoder(std::shared_ptr<const ChatTemplate> chat_template,
                      std::shared_ptr<const Tokenizer> tokenizer,
                      bool special_tokens_of_users = false);

  // The rendered text is encoded as a whole. A token is learnt if all of its text lies in an answer
  // (RenderedConversation::answers), so that the last one of an answer is its end token. The
  // tokenizer's prefix of a text (bos) is there exactly once, whether the template writes it or
  // not. Throws InputError as RenderConversation does.
  EncodedConversation Encode(const Conversation& conversation) const;

  // The tokens of messages up to where the assistant answers next.
  std::vector<int32_t> EncodePrompt(const Conversation& conversation) const;

  // The token that ends an answer, as the template writes a short conversation. Throws InputError
  // as RenderConversation does.
  int32_t EndOfAnswer() const;
  // All tokens after which the model is not asked to continue: that one, and the tokenizer's eos
  // and end of text. Throws InputError as RenderConversation does.
  std::vector<int32_t> EndsOfAnswers() const;

  // Joins parts of text if the template does not know them.
  RenderedConversation Render(const Conversation& conversation) const;

 private:
  const std::shared_ptr<const ChatTemplate> chat_template_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const ControlTokens control_;
  const bool special_tokens_of_users_;
};

}  // namespace lockstep::data
