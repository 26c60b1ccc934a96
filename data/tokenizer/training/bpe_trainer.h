// Training of byte-level BPE vocabularies (Sennrich et al., arXiv 1508.07909).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/training/word_counts.h"

namespace lockstep::data {

struct BpeTrainerOptions {
  int64_t vocab_size = 32000;  // special tokens, 256 bytes and merged tokens together
  int64_t min_frequency = 2;   // a pair that occurs less often is not merged
  bool allow_fewer = false;    // return a smaller vocabulary where the words have too few pairs
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
};

// Ids are, in this order: the special tokens as given; the 256 bytes, in the order of the
// characters that stand for them (BytesToPrintable); the merged tokens in the order of training.
struct TrainedBpe {
  std::vector<std::string> tokens;  // id -> bytes
  int64_t num_special = 0;          // tokens[0, num_special) are the special tokens
  std::vector<BpeMerge> merges;     // in order of precedence
};

// Repeatedly merges the most frequent pair of adjacent tokens inside the words, of equally frequent
// ones that with the smallest (left id, right id), until the vocabulary has its size. The merges
// are those of Hugging Face's BpeTrainer with initial_alphabet=ByteLevel.alphabet(), but counts
// have 64 bits, and they depend on the words and options only.
//
// Throws ArgumentError for options that make no sense (a vocabulary without room for the special
// tokens and the 256 bytes; an empty or repeated special token; counts that are negative or whose
// sum overflows), and InputError where the words have too few frequent pairs for `vocab_size`, or
// where a merged token would have the text of a special one.
TrainedBpe TrainBpe(const WordCounts& words, const BpeTrainerOptions& options);

// The vocabulary as Hugging Face's tokenizer.json, which `tokenizers`, `transformers` and
// LoadTokenizer read. The two fields are those by which MakeWordSplitter made the words.
std::string ToHuggingFaceJson(const TrainedBpe& bpe, const OrderedJson& pre_tokenizer,
                              const OrderedJson& normalizer);

// A pre-tokenizer with the pattern of that name (NamedSplitPattern).
OrderedJson NamedPreTokenizer(std::string_view name);

// The pre-tokenizer of GPT-2.
OrderedJson Gpt2PreTokenizer();

}  // namespace lockstep::data
