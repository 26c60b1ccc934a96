// All rows of JSONL files as tokens, encoded by all threads, and which of them are held out for
// validation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "data/conversations/conversation_encoder.h"
#include "data/dataset.h"

namespace lockstep::data {

// Numbers of rows, both in the order of the rows.
struct RowSplit {
  std::vector<int64_t> train, val;
};

// Holds out round(val_fraction x rows) of the rows, but at least one and not all of them, at
// random: files are often sorted. Which ones depends only on `rows` and val_fraction, so runs with
// other seeds are validated on the same rows. `val` is empty if val_fraction is 0, or if there are
// fewer than 2 rows. 0 <= val_fraction < 1.
RowSplit SplitRows(int64_t rows, double val_fraction);

// The result of a row: one conversation, or two answers.
using EncodedRow = std::vector<EncodedConversation>;

// Calls encode(row, place) for each line that data.path names, on several threads, and append with
// what it returned, in the order of the lines. Throws the error of the first bad line. Returns how
// many malformed parts of UTF-8 became U+FFFD.
int64_t EncodeRows(const std::string& path,
                   const std::function<EncodedRow(const OrderedJson&, const std::string&)>& encode,
                   const std::function<void(EncodedRow, const std::string&)>& append);

// The tokenizer for data that a chat template renders. Throws InputError if there is none.
std::shared_ptr<const Tokenizer> TokenizerForChat(const DatasetOptions& options);

}  // namespace lockstep::data
