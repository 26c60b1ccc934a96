// Mixtures of conversations with text, token files or other conversations.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "data/conversations/conversation_dataset.h"
#include "data/dataset.h"

namespace lockstep::data {

// OpenDataset, for windows beside those of conversations: where documents cannot be told apart,
// each stream is one document.
Dataset OpenDocuments(const DatasetOptions& options);

// Opens options.mix as OpenDataset does, but the sources for which `is_conversations` is true as
// OpenConversations does. Their windows are rows of conversations, of which only answers are
// learnt; windows of other sources, opened by OpenDocuments, are learnt whole. The counts are those
// of all conversations. For every order but kRandom. Throws InputError as both of them do.
ConversationDataset OpenConversationMixture(
    const DatasetOptions& options, const ConversationOptions& conversation_options,
    const std::function<bool(const std::string& path)>& is_conversations);

// The training rows of conversations, for ShowRow: of a mixture, those of its first source that has
// any.
std::shared_ptr<const TokenSource> ConversationRows(const Dataset& dataset);

}  // namespace lockstep::data
