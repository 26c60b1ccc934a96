// Conversations as a data set: packed into rows of the model's window, with masks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

struct ConversationOptions {
  // A template's file, or a folder or tokenizer_config.json with one; if empty, the first of
  // `folders` that has one.
  std::string chat_template;
  std::vector<std::string> folders;
  // What happens to a conversation of more than block_size tokens: "drop" leaves it out, "cut"
  // keeps its beginning, "error" is an InputError that names it.
  std::string if_long = "drop";
  // As for ConversationEncoder.
  bool special_tokens_of_users = false;
};

// For training and validation together.
struct ConversationCounts {
  int64_t conversations = 0;  // that were packed
  int64_t too_long = 0;       // dropped or cut
  int64_t not_learnt = 0;     // dropped, because nothing of them is learnt
  int64_t empty = 0;          // dropped, because a message has no text
  int64_t rows = 0;
  int64_t tokens = 0;  // without those that fill rows up
  int64_t learnt = 0;
  int64_t most_tokens = 0;  // of a conversation, even of one that is too long
};

struct ConversationDataset {
  // Sources of rows x block_size + 1 tokens, whose window r is row r: a Sampler with that
  // block_size takes rows, for every order but kRandom. Each conversation is a document, and only
  // what the model is to learn is a target (TokenSource::has_loss_mask). `note` says what was
  // packed and left out. The tokenizer carries the chat template (ConfigJson).
  Dataset dataset;
  ConversationCounts counts;
};

// Whether the first row of the files that data.path names is a conversation. False for anything
// that can't be read. InputError if it also has text in `field`, and for standard input, "-", which
// can be read only once.
bool HoldsConversations(const std::string& path, const std::string& field);

// Reads, renders and encodes all conversations. SplitRows says which are for validation.
// Throws InputError for bad rows, with file and line; without a tokenizer or a chat template; and
// if nothing is left for training or validation.
ConversationDataset OpenConversations(const DatasetOptions& options,
                                      const ConversationOptions& conversation_options);

// A row of such a source as text: what is learnt is enclosed in the marks `begin` and `end`, and
// each conversation begins on a new line.
std::string ShowRow(const TokenSource& source, const Tokenizer& tokenizer, int64_t row,
                    int64_t block_size, const std::string& begin, const std::string& end);

}  // namespace lockstep::data
