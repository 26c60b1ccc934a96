// GPT-2's pre-tokenization: text is cut into words, numbers, punctuation and white space, and byte
// pair merges never cross a cut.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace lockstep::data {

// PCRE2 with its compiler to machine code where the platform has it. Thread-safe.
class Gpt2Splitter {
 public:
  Gpt2Splitter();
  ~Gpt2Splitter();

  // Calls `sink` with consecutive pieces that together are `text`. Where text is not well-formed
  // UTF-8, each longest run of malformed bytes is a piece of its own, and the text between two runs
  // is split as a text of its own.
  void Split(std::string_view text, const std::function<void(std::string_view)>& sink) const;

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
};

}  // namespace lockstep::data
