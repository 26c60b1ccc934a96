// GPT-2's way to write bytes as printable characters: printable Latin-1 stands for itself, and
// U+0100 and up stand for the other bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

std::string BytesToPrintable(std::string_view bytes);

// The inverse; nullopt if a character is not in the alphabet.
std::optional<std::string> PrintableToBytes(std::string_view text);

}  // namespace lockstep::data
