// A vocabulary of one's own, from the text that will be prepared with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/text/document_reader.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

struct TokenizerTraining {
  int64_t vocab_size = 32000;  // special tokens, 256 bytes and merged tokens together
  // After <|endoftext|>, which is always the first. They have the ids 1, 2 ..., and no ordinary
  // text becomes one: <|im_start|> and <|im_end|> for chats in the ChatML format, for example.
  std::vector<std::string> special_tokens = {};
  std::string split_pattern = "gpt2";  // as for NamedSplitPattern
};

// Byte-level BPE (data/tokenizer/training/bpe_trainer.h) over all documents of the files. Depends
// on the text and the options only. Its memory is the distinct words, and a document or piece of
// one per thread. Throws InputError as TextOf does, for an empty or repeated special token, and if
// the text has too few words for vocab_size.
std::unique_ptr<Tokenizer> TrainTokenizer(const std::vector<std::string>& files,
                                          const TextOptions& options,
                                          const TokenizerTraining& training);

}  // namespace lockstep::data
