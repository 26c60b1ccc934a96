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

// Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Every id is in [0, vocab_size()). Throws InputError for text that has no tokens.
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;

  // The concatenated text of the ids: Decode(Encode(text)) == text. A single id's text need not be
  // well-formed UTF-8 (byte tokens). Throws ArgumentError for an id outside the vocabulary.
  virtual std::string Decode(std::span<const int32_t> ids) const = 0;

  virtual int64_t vocab_size() const = 0;

  // The "type" in ToJson: "char", "byte" or "gpt2".
  virtual std::string_view name() const = 0;

  // The id that separates documents, if the vocabulary has one. Encode never produces it.
  virtual std::optional<int32_t> end_of_text() const { return std::nullopt; }

  // The complete tokenizer as a JSON object with "format" and "type", which FromJson reads.
  virtual std::string ToJson() const = 0;

  // Reads what ToJson wrote. `origin` names the source in messages (InputError).
  static std::unique_ptr<Tokenizer> FromJson(std::string_view json, const std::string& origin);
};

// Loads a vocabulary from disk: a file that ToJson wrote, Hugging Face's tokenizer.json, or a
// folder with either, or with GPT-2's encoder.json and vocab.bpe (or vocab.json and merges.txt).
// The path may also be one of those two files. Throws InputError.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& path);

// GPT-2's tokenizer, whose vocabulary is not part of Lockstep: from $LOCKSTEP_GPT2_DIR, or else
// from ~/.cache/lockstep/gpt2. Null if neither exists; InputError if it cannot be read.
std::unique_ptr<Tokenizer> FindGpt2Tokenizer();
// How to install that vocabulary, for messages.
std::string HowToGetGpt2Vocabulary();

// The tokenizer that the option data.tokenizer names: "char" (of the characters in `text`), "byte",
// "gpt2" (FindGpt2Tokenizer), or a path for LoadTokenizer. Throws InputError.
std::unique_ptr<Tokenizer> MakeTokenizer(const std::string& option, std::string_view text);

}  // namespace lockstep::data
