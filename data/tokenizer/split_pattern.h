// The regular expressions by which tokenizers cut text into words.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::data {

// Immutable and thread-safe.
class SplitPattern {
 public:
  // Takes the matches and the gaps between them, in the order of the text; none is empty.
  using Sink = std::function<void(std::string_view piece, bool is_match)>;

  virtual ~SplitPattern() = default;

  // Finds the matches from left to right, each from the end of the one before. `text` must be
  // well-formed UTF-8. Throws InputError if a pattern takes too long or too much memory.
  virtual void Cut(std::string_view text, const Sink& sink) const = 0;

  // A pattern in Oniguruma's syntax, as Hugging Face's tokenizers use it. The patterns of GPT-2,
  // Llama 3, Qwen 2, GPT-4o, Tekken and their variants have hand-written matchers; PCRE2 compiles
  // all others, with Unicode 16's letters, marks, numbers, punctuation
  // and symbols. Throws InputError, which begins with
  // `where`, for what PCRE2 does not know or understands differently.
  static std::unique_ptr<SplitPattern> Compile(std::string_view regex, const std::string& where);

  // A pattern that matches exactly `text`, which is not empty.
  static std::unique_ptr<SplitPattern> Literal(std::string_view text);
};

// The pattern of a well-known tokenizer: "gpt2", "llama-3", "qwen2", "gpt-4o" or "tekken". Any
// other name is an InputError that lists them.
std::string NamedSplitPattern(std::string_view name);

// The hand-written matcher of a well-known pattern; null for all others.
std::unique_ptr<SplitPattern> KnownSplitPattern(std::string_view regex);

// The pattern in PCRE2's syntax, with the characters that PCRE2 10.42 lacks. For tests.
std::string TranslateForPcre2(std::string_view regex, const std::string& where);

}  // namespace lockstep::data
