// All rows of JSONL files as tokens, encoded by all threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/conversations/conversation_encoder.h"
#include "data/dataset.h"

namespace lockstep::data {

// The result of a row: one conversation, or two answers.
using EncodedRow = std::vector<EncodedConversation>;

// Calls encode(row, place) for each line that data.path names, on several threads, and append with
// what it returned, in the order of the lines. Throws the error of the first bad line. Returns how
// many malformed parts of UTF-8 became U+FFFD.
int64_t EncodeRows(
    const std::string& path,
    const std::function<EncodedRow(const nlohmann::ordered_json&, const std::string&)>& encode,
    const std::function<void(EncodedRow, const std::string&)>& append);

// The tokenizer for data that a chat template renders. Throws InputError if there is none.
std::shared_ptr<const Tokenizer> TokenizerForChat(const DatasetOptions& options);

}  // namespace lockstep::data
