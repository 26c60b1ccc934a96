// GPT-2's pre-tokenization: text is cut into words, numbers, punctuation and white space, and byte
// pair merges never cross a cut.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace lockstep::data {

// Uses PCRE2, with its just-in-time compiler if the platform has it. Thread-safe.
class Gpt2Splitter {
 public:
  Gpt2Splitter();
  ~Gpt2Splitter();

  // Calls `sink` with the consecutive pieces of `text`. If it is not well-formed UTF-8, each
  // maximal run of malformed bytes is a piece, and the text between two runs is split separately.
  void Split(std::string_view text, const std::function<void(std::string_view)>& sink) const;

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
};

}  // namespace lockstep::data
