// Text that is shown while it is generated.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

// Turns the bytes of tokens into text to show: only whole UTF-8 characters, and nothing of a stop
// text. The text depends only on the bytes, not on how they are cut into tokens.
class TextStream {
 public:
  // The text ends before the first of these byte strings to be completed; if several end at the
  // same byte, before the longest. InputError if one is empty.
  explicit TextStream(std::vector<std::string> stop_texts = {});

  // Takes the next bytes and returns what can be shown now. Each byte that is not UTF-8 gives one
  // U+FFFD. Bytes after a stop text are ignored.
  std::string Push(std::string_view bytes);
  // Call at the end: returns what was held back as the possible start of a stop text or a
  // character.
  std::string Finish();
  // Whether a stop text was found.
  bool stopped() const { return stopped_; }

 private:
  std::string Show(size_t end, bool last);

  std::vector<std::string> stop_texts_;
  std::string held_;  // not shown yet
  bool stopped_ = false;
};

}  // namespace lockstep::models
