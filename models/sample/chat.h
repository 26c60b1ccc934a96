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
  std::string chat_template = {}, folder = {};
  std::string system = {};             // what the system says first; empty: nothing
  std::vector<std::string> stop = {};  // texts that also end an answer
  GenerateOptions generate;            // of each answer
  // The next message of the user; none ends the conversation. An empty one is skipped.
  std::function<std::optional<std::string>()> next_message;
  std::FILE* to = nullptr;  // gets the answers while they are generated; null: prints nothing
};

// Answers each message, with everything said before in view, until the model writes the end of its
// turn (the token that ends an answer in the chat template, or the tokenizer's eos) or has written
// generate.tokens tokens. The keys and values of the conversation are kept from turn to turn: if it
// begins as before, only what is new is computed.
//
// The conversation and the answer always fit the model's context. Before an answer, half a slide
// (SlideOf) is kept free for it, or generate.tokens tokens if that is less. A conversation that
// leaves less room forgets its oldest pairs of message and answer, but never what the system said,
// until it has a whole slide to grow into, so that it does not begin anew with each turn. An answer
// that fills the context ends there. A line on stderr reports either.
//
// Returns what all answers took. Throws InputError if there is no template, and for a message that
// is too long by itself.
GenerateStats Chat(Gpt& model, std::shared_ptr<const data::Tokenizer> tokenizer,
                   const ChatOptions& options);

}  // namespace lockstep::models
