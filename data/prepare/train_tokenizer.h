// A vocabulary of one's own, from the text that will be prepared with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/text/document_reader.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// Byte-level BPE with GPT-2's split pattern (data/tokenizer/bpe_trainer.h) and <|endoftext|>, of
// vocab_size tokens in all, over all documents of the files. Depends on the text only. Memory: the
// distinct words, and a document per thread. InputError as TextOf, and where the text has too few
// words for vocab_size.
std::unique_ptr<Tokenizer> TrainTokenizer(const std::vector<std::string>& files,
                                          const TextOptions& options, int64_t vocab_size);

}  // namespace lockstep::data
