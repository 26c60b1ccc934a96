// What a server knows of its model besides the weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/conversations/conversation_encoder.h"
#include "data/tokenizer/tokenizer.h"
#include "models/gpt/gpt_config.h"

namespace lockstep::models {

// Not changed while a server runs, so that threads can share it.
struct ServedModel {
  std::string name;
  std::shared_ptr<const data::Tokenizer> tokenizer;
  // Null: the model has no chat template.
  std::shared_ptr<const data::ConversationEncoder> conversations;
  std::vector<int32_t> ends_of_texts, ends_of_answers;  // tokens that end a completion, an answer
  int64_t vocab_size = 0;
  int64_t context = 0;  // the longest prompt in tokens
  // Whether a completion that has filled the context goes on, as in sample_gpt; else it ends there.
  bool slides = true;
};

// `chat_template` may be null. `context`: at most so many tokens; 0: the model's. InputError as
// ConversationEncoder::EndsOfAnswers.
ServedModel MakeServedModel(const std::string& name, const GptConfig& shape,
                            std::shared_ptr<const data::Tokenizer> tokenizer,
                            std::shared_ptr<const data::ChatTemplate> chat_template,
                            int64_t context);

}  // namespace lockstep::models
