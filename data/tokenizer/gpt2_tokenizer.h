// Byte-level BPE with GPT-2's split pattern.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/gpt2_splitter.h"
#include "data/tokenizer/gpt2_vocabulary.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// Produces the same ids as OpenAI's encoder and tiktoken's "gpt2" (encode_ordinary: <|endoftext|>
// in a text is plain text). Any bytes round-trip, well-formed UTF-8 or not. Pieces are cached, so
// encoding costs about one hash lookup per word.
class Gpt2Tokenizer : public Tokenizer {
 public:
  explicit Gpt2Tokenizer(Gpt2Vocabulary vocabulary);
  ~Gpt2Tokenizer() override;

  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(vocabulary_.tokens.size()); }
  std::string_view name() const override { return "gpt2"; }
  std::optional<int32_t> end_of_text() const override { return vocabulary_.end_of_text; }
  std::string ToJson() const override;

 private:
  class Cache;
  void EncodePiece(std::string_view piece, Cache* cache, std::vector<int32_t>* ids) const;

  Gpt2Vocabulary vocabulary_;
  BpeMerger merger_;
  Gpt2Splitter splitter_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace lockstep::data
