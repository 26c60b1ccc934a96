// What GGUF and llama.cpp have of tokenizers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::models {

// llama.cpp's kinds of tokens.
enum GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

inline constexpr std::string_view kGgufSpace = "\u2581";  // SentencePiece's

// How llama.cpp calls a cut into words (tokenizer.ggml.pre), which also decides whether a word that
// is a token is taken before any merge.
struct GgufWords {
  std::string_view name;
  std::string_view pattern;    // "": GPT-2's
  bool digits = false;         // single digits are cut off before
  bool ignore_merges = false;  // and bos is put in front unless the file says otherwise
};
std::span<const GgufWords> KnownGgufWords();

}  // namespace lockstep::models
