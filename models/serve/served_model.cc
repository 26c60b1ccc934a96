#include "models/serve/served_model.h"

#include <algorithm>
#include <utility>

namespace lockstep::models {

ServedModel MakeServedModel(const std::string& name, const GptConfig& shape,
                            std::shared_ptr<const data::Tokenizer> tokenizer,
                            std::shared_ptr<const data::ChatTemplate> chat_template,
                            int64_t context) {
  ServedModel model{.name = name, .tokenizer = std::move(tokenizer)};
  if (const auto end = model.tokenizer->end_of_text()) model.ends_of_texts.push_back(*end);
  if (const auto eos = model.tokenizer->special_ids().eos) model.ends_of_texts.push_back(*eos);
  if (chat_template) {
    model.conversations =
        std::make_shared<data::ConversationEncoder>(std::move(chat_template), model.tokenizer);
    model.ends_of_answers = model.conversations->EndsOfAnswers();
  }
  model.vocab_size = shape.vocab_size;
  model.context = context > 0 ? std::min(context, shape.block_size) : shape.block_size;
  model.slides = model.context == shape.block_size;
  return model;
}

}  // namespace lockstep::models
