// BPE tokenizers as Hugging Face's tokenizer.json describes them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

class Decoder;

// The byte-level kinds (GPT-2, Llama 3, Qwen, SmolLM, GPT-4o, Tekken) and those in the style of
// SentencePiece (Llama 2, Mistral, Gemma). The ids are those of Hugging Face's `tokenizers`:
//
//   Encode                encode(text, add_special_tokens=False) with encode_special_tokens=True
//   EncodeWithSpecials    encode(text, add_special_tokens=False)
//
// so Encode finds those added tokens that are not special, which belong to the vocabulary like any
// word (Gemma's "\n\n", Qwen's <think>). Text that is not UTF-8 can be encoded, too: its malformed
// bytes are kept apart from their neighbours. Fields that would change the ids in a way that is not
// implemented are refused by name; "truncation" and "padding" are ignored, since they concern
// batches.
class BpeTokenizer : public Tokenizer {
 public:
  // `json` is a tokenizer.json, `text` its text, which ToJson returns, and `config` the text of the
  // tokenizer_config.json next to it, or empty. Throws InputError, which begins with `origin`.
  BpeTokenizer(const Json& json, std::string text, std::string config, const std::string& origin);
  ~BpeTokenizer() override;

  std::vector<int32_t> Encode(std::string_view text) const override;
  void EncodeTo(std::string_view text, std::vector<int32_t>* ids) const override;
  void EncodeRestTo(std::string_view text, std::vector<int32_t>* ids) const override;
  std::vector<int32_t> EncodeWithSpecials(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids) const override;
  std::string TokenText(int32_t id) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(texts_.size()); }
  std::string_view name() const override { return "bpe"; }
  std::optional<int32_t> end_of_text() const override { return end_of_text_; }
  SpecialIds special_ids() const override { return special_ids_; }
  std::optional<int32_t> AddedId(std::string_view text) const override;
  std::string ToJson() const override { return text_; }
  std::string ConfigJson() const override { return config_; }

 private:
  struct Target;  // where the ids of a text go

  void ReadAddedTokens(const JsonObject& json);
  void SetTexts();
  void ReadPostProcessor(const JsonObject& json);
  void ReadTemplate(const JsonObject& json);
  void ReadConfig(const std::string& origin);
  using Place = PreTokenizer::Place;
  void EncodeText(std::string_view text, Place place, bool with_specials,
                  std::vector<int32_t>* ids) const;
  void EncodeValid(std::string_view text, Place place, bool with_specials, Target* target) const;

  std::string text_, config_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<BpeModel> model_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<AddedToken> added_;
  std::map<std::string, int32_t, std::less<>> added_ids_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  std::vector<std::string> texts_;  // by id: TokenText
  SpecialIds special_ids_;
  std::optional<int32_t> end_of_text_;
};

}  // namespace lockstep::data
