// Tokens that are found in the text itself, before it is cut into words.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::data {

// An element of "added_tokens" in a tokenizer.json.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // does not match next to a character of a word
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = true;    // is found in normalized text
  bool special = false;      // a control token, which ordinary text cannot spell
};

// Finds added tokens in a text, as the tokenizers library does: it matches from left to right, the
// longest token at each place; a special token that is not wanted still occupies its place, but is
// text. Immutable and thread-safe.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;

  // `pattern` is what to look for: the content, or its normalized form.
  void Add(const AddedToken& token, std::string_view pattern);

  // Takes, in order, the tokens (with an id) and the text between them (without).
  using Sink = std::function<void(std::string_view text, std::optional<int32_t> id)>;
  void Cut(std::string_view text, bool with_specials, const Sink& sink) const;

 private:
  // Where the first pattern from `begin` on may start, or the end of the text.
  size_t NextStart(std::string_view text, size_t begin) const;
  // The token at the start of `text` with the longest pattern, or null; its length in bytes.
  const AddedToken* Longest(std::string_view text, size_t* length) const;

  // A trie: a node is a prefix of patterns, an edge (node, byte) leads to the next.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_at_{-1};  // by node: index into tokens_, or -1
  std::vector<AddedToken> tokens_;
  std::array<bool, 256> is_first_byte_{};
  std::string first_bytes_;  // the same ones
};

}  // namespace lockstep::data
