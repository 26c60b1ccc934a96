// What stands around a document in a stream of tokens, and so tells documents apart.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

struct DocumentMarks {
  std::vector<int32_t> before, after;
  // The token that each document begins with, or ends with in nanoGPT's format.
  std::optional<int32_t> separator;
};

// Where the tokenizer puts a bos before each text, as those of Llama, Mistral and Gemma do, the
// documents are as these models were trained: bos, the text, end of text. Otherwise the end-of-text
// token tells documents apart: before each one, as in llm.c, or with `nanogpt` after each.
DocumentMarks MarksOf(const Tokenizer& tokenizer, bool nanogpt);

}  // namespace lockstep::data
