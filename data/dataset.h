// From the options data.* to token streams for training and validation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/token_source.h"
#include "data/tokenizer.h"

namespace lockstep::data {

struct DatasetOptions {
  // A text file, a token file (*.bin), a pattern of token files, or empty: the embedded corpus.
  std::string path;
  // For MakeTokenizer. Empty: char for text, none for token files.
  std::string tokenizer;
  // Takes the place of `tokenizer`: a checkpoint's own.
  std::shared_ptr<const Tokenizer> loaded_tokenizer;
  // In [0, 1): the share of the text, counted in characters (bytes for the byte tokenizer, tokens
  // for token files), at its end that is kept for validation. Not used for files whose names tell.
  double val_fraction = 0.1;
  // Tokens in a window: fewer than block_size + 1 tokens for training are an error.
  int64_t block_size = 1;
  // The model's vocabulary; 0: not known. Every token must be below it.
  int64_t vocab_size = 0;
};

struct Dataset {
  // Null for token files without data.tokenizer, or without the vocabulary of the one it names:
  // tokens are trained on as they are.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const TokenSource> train;
  std::shared_ptr<const TokenSource> val;  // null if nothing is kept for validation
  // The tokenizer's; for token files without one, the largest token + 1.
  int64_t vocab_size = 0;
  // What samples of its text will look like, and how to change that; empty where they are text.
  std::string note;
  // "the embedded corpus", or the path.
  std::string name;
  // SHA-256 of the text; for token files, of each file's token count and its first and last 64 KiB.
  // Equal for equal data wherever it lies.
  std::string fingerprint;
};

// Reads everything that a text has, and checks everything that token files have. Throws InputError
// or IoError: what is missing, empty, too small, malformed or outside the vocabulary, and the fix.
Dataset OpenDataset(const DatasetOptions& options);

}  // namespace lockstep::data
