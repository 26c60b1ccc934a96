// Text that is shown while it is generated.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

// Turns the bytes of tokens into text to show: whole UTF-8 characters only, and nothing of a stop
// text. What it gives in all depends on the bytes alone, not on how they are cut into tokens.
class TextStream {
 public:
  // The text ends before the first of these byte strings to be complete; of those that end
  // together, the longest counts. InputError if one is empty.
  explicit TextStream(std::vector<std::string> stop_texts = {});

  // The next bytes; returns what can be shown now. Bytes that are no UTF-8 give U+FFFD, one for
  // each. After a stop text further bytes are ignored.
  std::string Push(std::string_view bytes);
  // Nothing follows: what was held back, because it might have become a stop text or a character.
  std::string Finish();
  // A stop text came.
  bool stopped() const { return stopped_; }

 private:
  std::string Show(size_t end, bool last);

  std::vector<std::string> stop_texts_;
  std::string held_;  // not shown yet
  bool stopped_ = false;
};

}  // namespace lockstep::models
