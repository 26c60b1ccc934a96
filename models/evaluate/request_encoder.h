// Texts to be scored, as tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::models {

// The last `scored` tokens of `ids` are to be scored, given all that precede them: at least one.
struct ScoreRequest {
  std::vector<int32_t> ids;
  int64_t scored = 0;
  bool wants_greedy = false;  // whether Score::greedy is computed
};

// How lm-evaluation-harness makes tokens (api/model.py, models/huggingface.py), for a model with a
// context of block_size tokens. The tokenizer outlives it.
class RequestEncoder {
 public:
  RequestEncoder(const data::Tokenizer& tokenizer, int64_t block_size, int64_t vocab_size);

  // White space at the end of the context moves to the continuation, and both are encoded together:
  // the continuation's tokens are those after as many as the context by itself has. Special tokens
  // that texts spell become their ids; before the context comes what the tokenizer puts there
  // (bos), unless the context spells it. An empty context is the prefix. If it is longer than the
  // model's context, its beginning is cut off. InputError if the continuation has no tokens, or
  // more than the model's context.
  ScoreRequest Pair(std::string_view context, std::string_view continuation) const;

  // Windows that score each token of a text once, with as much before it as fits, but at least one
  // token: the prefix comes first, once (the harness puts it before the tokenizer's own bos, too).
  // Without a prefix the first token is not scored. Empty for a text without tokens.
  std::vector<ScoreRequest> Rolling(std::string_view text) const;

  // The last tokens of a text that leave room for `tokens` more. InputError if none are left.
  std::vector<int32_t> Prompt(std::string_view text, int64_t tokens) const;

  // As DCLM's CORE does: the prefix and the text, which spells no special tokens.
  std::vector<int32_t> Plain(std::string_view text) const;
  // Tokens begin .. end of ids, cut from the left where all do not fit the model's context.
  ScoreRequest Range(std::vector<int32_t> ids, int64_t begin) const;

  const data::Tokenizer& tokenizer() const { return tokenizer_; }
  // The id that stands before what has nothing before it: bos, else eos, else the end of a text.
  const std::optional<int32_t>& prefix() const { return prefix_; }

 private:
  std::vector<int32_t> Encode(std::string_view text) const;
  ScoreRequest Cut(std::vector<int32_t> ids, int64_t scored, int64_t most) const;

  const data::Tokenizer& tokenizer_;
  const int64_t block_size_, vocab_size_;
  const std::optional<int32_t> prefix_;
};

}  // namespace lockstep::models
