#include "core/system/shell_word.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

namespace lockstep {
namespace {

std::string WordOfTheShell(const std::string& word) {
  std::FILE* const pipe = popen(("printf '%s' " + word).c_str(), "r");
  std::array<char, 256> buffer;
  const size_t n = fread(buffer.data(), 1, buffer.size(), pipe);
  pclose(pipe);
  return {buffer.data(), n};
}

TEST(ShellWord, IsOneWordOfTheSameText) {
  for (const std::string text : {"out", "my run", "it's", "a'b'c", "$HOME", "`x`", "a\\b", "*", "~",
                                 "\"", "a;b", "a&b", "#a", "", "caf\xC3\xA9", "a\nb", "x=1,2:3"}) {
    EXPECT_EQ(WordOfTheShell(ShellWord(text)), text) << ShellWord(text);
  }
  EXPECT_EQ(ShellWord("out/step-1"), "out/step-1");
}

}  // namespace
}  // namespace lockstep
