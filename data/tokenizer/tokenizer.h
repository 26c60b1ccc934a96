// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// The ids with a special role, as far as the tokenizer has them.
struct SpecialIds {
  std::optional<int32_t> bos, eos, pad, unk;
  // What Hugging Face's post-processor puts before and after a text (add_special_tokens=True), such
  // as bos. Neither Encode nor EncodeWithSpecials adds it.
  std::vector<int32_t> before, after;
};

// Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ordinary encoding: all of `text` is text, so that no special token comes out of it, whatever it
  // spells. Every id is in [0, vocab_size()). Throws InputError for text that has no tokens.
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;

  // Appends what Encode returns to `ids`. After an exception, `ids` may have some of it.
  virtual void EncodeTo(std::string_view text, std::vector<int32_t>* ids) const;

  // Like EncodeTo, but `text` continues one that has been encoded already: the tokenizer's usual
  // prefix of a text, such as Llama 2's space, is left out. The ids are those of both texts at once
  // if they meet where data/text/text_parts.h says so.
  virtual void EncodeRestTo(std::string_view text, std::vector<int32_t>* ids) const {
    EncodeTo(text, ids);
  }

  // Like Encode, but the special tokens that `text` spells, such as <|im_end|>, become their ids.
  // Only for text whose author may write special tokens: a rendered chat template, a prompt.
  virtual std::vector<int32_t> EncodeWithSpecials(std::string_view text) const {
    return Encode(text);
  }

  // The text of a sequence of ids: Decode(Encode(text)) == text, unless the tokenizer normalizes
  // text (NFC). It need not be well-formed UTF-8 (byte tokens). Throws ArgumentError for an id
  // outside the vocabulary.
  virtual std::string Decode(std::span<const int32_t> ids) const = 0;

  // What `id` adds to a text that other tokens have begun. It differs from Decode for tokenizers
  // that begin a text with a space which Decode drops (Llama 2's). Throws as Decode does.
  virtual std::string TokenText(int32_t id) const { return Decode(std::span(&id, 1)); }

  virtual int64_t vocab_size() const = 0;

  // The kind: "char", "byte" or "bpe".
  virtual std::string_view name() const = 0;

  // The id that separates documents, if the vocabulary has one. Encode never produces it.
  virtual std::optional<int32_t> end_of_text() const { return std::nullopt; }

  virtual SpecialIds special_ids() const { return {}; }

  // The id of the added token with exactly this text, such as "<|im_end|>" or "<think>".
  virtual std::optional<int32_t> AddedId(std::string_view text) const {
    (void)text;
    return std::nullopt;
  }

  // The complete tokenizer as Hugging Face's tokenizer.json, which FromJson reads.
  virtual std::string ToJson() const = 0;

  // The tokenizer_config.json from the tokenizer's folder, with the names of bos and eos and the
  // chat template; empty if there was none.
  virtual std::string ConfigJson() const { return ""; }

  // Reads what ToJson wrote, and what ConfigJson gave. `origin` names the source in messages
  // (InputError).
  static std::unique_ptr<Tokenizer> FromJson(std::string_view json, const std::string& origin,
                                             const std::string& config_json = "");
};

// Loads a vocabulary from disk: a file that ToJson wrote, or what a folder, or one file of it, has
// of a tokenizer, as transformers reads it:
//
//   tokenizer.json               everything but what follows
//   vocab.json, merges.txt       where that is missing (also as encoder.json, vocab.bpe): GPT-2's
//   or
//                                Qwen2's, as the tokenizer_class of tokenizer_config.json or else
//                                the model_type of config.json says; without either GPT-2's
//   tokenizer_config.json        more added tokens (added_tokens_decoder), the names of bos and eos
//   special_tokens_map.json,     the same, where that has no added_tokens_decoder
//   added_tokens.json
//
// Throws InputError, which names the file for other kinds (tokenizer.model).
std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& path);
// Whether a folder has the files of a tokenizer, supported or not.
bool HasTokenizer(const std::string& folder);

// GPT-2's tokenizer, whose vocabulary is not part of Lockstep: from $LOCKSTEP_GPT2_DIR, or else
// from ~/.cache/lockstep/gpt2. Null if neither exists; InputError if it cannot be read.
std::unique_ptr<Tokenizer> FindGpt2Tokenizer();
// How to install that vocabulary, for messages.
std::string HowToGetGpt2Vocabulary();

// The tokenizer that the option data.tokenizer names: "char" (of the characters in `text`), "byte",
// "gpt2" (FindGpt2Tokenizer), or a path for LoadTokenizer. Throws InputError.
std::unique_ptr<Tokenizer> MakeTokenizer(const std::string& option, std::string_view text);

}  // namespace lockstep::data
