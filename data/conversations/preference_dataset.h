// Pairs of answers as a data set for preference tuning.
#pragma once

#include <cstdint>
#include <string>

#include "core/io/json.h"
#include "data/conversations/conversation.h"
#include "data/conversations/conversation_dataset.h"
#include "data/dataset.h"

namespace lockstep::data {

// The same messages with either answer. Only answers are learnt, and only what is not in both.
struct PreferencePair {
  Conversation chosen, rejected;
};

// Whether a row has the keys of ToPreferencePair.
bool LooksLikePreferencePair(const OrderedJson& row);

// Reads a row of the formats that TRL's DPO takes:
// - {"prompt": "...", "chosen": "...", "rejected": "..."}: a user's message and two answers; each
//   of the three may also be a list of messages;
// - {"chosen": [...], "rejected": [...]}: lists that begin with the same messages, the prompt, and
//   end with an answer each. A "prompt" next to lists that do not begin with an answer only repeats
//   what they contain.
// Both may have "system", "tools" and "chat_template_kwargs" like ToConversation's rows. Throws
// InputError that begins with `place` for other rows, for what ToConversation refuses in a message,
// and where an answer is missing.
PreferencePair ToPreferencePair(const OrderedJson& row, const std::string& place);

// For training and validation together.
struct PreferenceCounts {
  int64_t pairs = 0;       // that are used
  int64_t too_long = 0;    // dropped or cut, because an answer with its prompt is
  int64_t not_learnt = 0;  // dropped, because nothing of an answer is learnt
  int64_t equal = 0;       // dropped, because both answers are the same
  int64_t empty = 0;       // dropped, because a message has no text
  int64_t tokens = 0, learnt = 0;
  int64_t most_tokens = 0;  // of an answer with its prompt, even of one that is too long
};

struct PreferenceDataset {
  // Sources of pairs x 2 block_size + 1 tokens: window p of 2 block_size is pair p, the chosen
  // answer with its prompt in the first half and the rejected one in the second, each filled up. So
  // a Sampler with that block size takes pairs, for every order but kRandom. Only answers are
  // learnt (TokenSource::has_loss_mask). `note` says what was left out. The tokenizer carries the
  // chat template.
  Dataset dataset;
  PreferenceCounts counts;
};

// Reads, renders and encodes all pairs (ToPreferencePair) of the JSONL files that options.path
// names. SplitRows says which are for validation. conversation_options.if_long says what happens to
// pairs with a row of more than block_size tokens. Throws InputError for bad rows, with file and
// line; without a tokenizer or a chat template; and if nothing is left for training or validation.
PreferenceDataset OpenPreferences(const DatasetOptions& options,
                                  const ConversationOptions& conversation_options);

// The answers of pair p, with their prompts, as texts of two paragraphs: what is learnt is enclosed
// in the marks `begin` and `end`. `source` is one of the data set's.
std::string ShowPair(const TokenSource& source, const Tokenizer& tokenizer, int64_t pair,
                     int64_t block_size, const std::string& begin, const std::string& end);

}  // namespace lockstep::data
