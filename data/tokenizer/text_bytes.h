// How much text tokens stand for: losses per byte compare models whose tokenizers differ.
#pragma once

#include <cstdint>

#include "data/evaluation.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// The bytes of text that all targets of the batches stand for, each as it continues a text
// (TokenText). Tokens that no text has, such as the one between documents, stand for none. Reads
// all batches.
int64_t CountBytes(const EvalBatches& batches, const Tokenizer& tokenizer);

}  // namespace lockstep::data
