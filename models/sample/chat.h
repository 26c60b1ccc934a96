// A conversation with a model.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "models/gpt/generate.h"

namespace lockstep::models {

struct ChatOptions {
  // A template's file or folder; if empty, the one in `folder`, where the weights are.
  std::string chat_template, folder;
  std::string system;             // what the system says first; empty: nothing
  std::vector<std::string> stop;  // texts that end an answer, too
  GenerateOptions generate;       // of each answer
  // The next message of the user; none ends the conversation. An empty one is passed over.
  std::function<std::optional<std::string>()> next_message;
  std::FILE* to = nullptr;  // gets the answers while they are generated; null: prints nothing
};

// Answers each message, with everything said before in view, until the model writes the end of its
// turn (the token that ends an answer in the chat template, or the tokenizer's eos) or has written
// generate.tokens tokens. What a conversation that outgrows the model's context said first is
// forgotten, in pairs of message and answer, and a line on stderr says so. Throws InputError if
// there is no template, and for a message that is too long by itself.
void Chat(Gpt& model, std::shared_ptr<const data::Tokenizer> tokenizer, const ChatOptions& options);

}  // namespace lockstep::models
