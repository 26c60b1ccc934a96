// The chat template that goes with a tokenizer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// Whether ChatTemplate::Load finds templates in the folder.
bool HasChatTemplate(const std::string& folder);

struct ModelTemplate {
  std::shared_ptr<const ChatTemplate> chat_template;
  // The given tokenizer, with the template in its ConfigJson, so that checkpoints keep it.
  std::shared_ptr<const Tokenizer> tokenizer;
};

// Loads the template from `path`, a file or a folder, or if that is empty from the first of
// `folders` that has one, or if none has, the tokenizer's own (that of a GGUF file). Special tokens
// that are not found next to it are the tokenizer's. A template that asks for the date always gets
// the same one (July 26, 2024, which Llama 3's templates use), so that data can be prepared again.
// Throws InputError if there is no template.
ModelTemplate LoadModelTemplate(const std::string& path, const std::vector<std::string>& folders,
                                std::shared_ptr<const Tokenizer> tokenizer);

// The tokenizer with the templates of the first of `folders` that has any in its ConfigJson, for
// runs that do not render; unchanged if none has.
std::shared_ptr<const Tokenizer> KeepTemplates(const std::vector<std::string>& folders,
                                               std::shared_ptr<const Tokenizer> tokenizer);

// The template that LoadModelTemplate left in a tokenizer. Throws InputError if it has none.
std::shared_ptr<const ChatTemplate> TemplateOf(const Tokenizer& tokenizer);

}  // namespace lockstep::data
