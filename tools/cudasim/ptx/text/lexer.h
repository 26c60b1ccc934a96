// Reads PTX character by character: words, numbers and punctuation between blanks and comments.
#ifndef CUDASIM_PTX_LEXER_H_
#define CUDASIM_PTX_LEXER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/cudasim/ptx/text/module.h"

namespace cudasim {
namespace ptx {

class Lexer {
 public:
  Lexer(std::string_view text, int line)
      : next_(text.data()), end_(next_ + text.size()), line_(line) {}

  // The next character that is neither blank nor comment, not yet consumed; 0 at the end.
  char Peek();
  bool Eat(char c);
  void Expect(char c);
  // Letters, digits and _ $ % . ::, possibly none.
  std::string_view Word();
  std::string_view ExpectWord(const char* what);
  // Up to and with the character, or to the end.
  std::string_view Until(char c);
  // After an opening brace: all before the closing one, which is consumed.
  std::string_view Block();
  // 12, -0x1F, 0f3F800000, 0d..., 1.5: an immediate operand.
  Operand Number();

  int line() const { return line_; }
  [[noreturn]] void Fail(const std::string& message) const;

 private:
  const char* next_;
  const char* end_;
  int line_;
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_LEXER_H_
