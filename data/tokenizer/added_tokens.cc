#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "data/tokenizer/character_class.h"

namespace lockstep::data {
namespace {

CharacterClass FirstClass(std::string_view text, size_t* length) {
  int bytes;
  const uint32_t c = DecodeValidUtf8(text.data(), &bytes);
  *length = static_cast<size_t>(bytes);
  return CharacterTable::Get().Of(c);
}

CharacterClass LastClass(std::string_view text, size_t* length) {
  size_t begin = text.size() - 1;
  while ((static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
  return FirstClass(text.substr(begin), length);
}

// The bytes of white space at the start and at the end.
size_t SpaceAtStart(std::string_view text) {
  size_t size = 0, length;
  while (size < text.size() && (FirstClass(text.substr(size), &length) & kSpace) != 0) {
    size += length;
  }
  return size;
}

size_t SpaceAtEnd(std::string_view text) {
  size_t size = 0, length;
  while (size < text.size() &&
         (LastClass(text.substr(0, text.size() - size), &length) & kSpace) != 0) {
    size += length;
  }
  return size;
}

bool IsWholeWord(std::string_view before, std::string_view after) {
  size_t length;
  const bool left = !before.empty() && (LastClass(before, &length) & kWord) != 0;
  const bool right = !after.empty() && (FirstClass(after, &length) & kWord) != 0;
  return !left && !right;
}

}  // namespace

void AddedTokenFinder::Add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  uint32_t node = 0;
  for (const char c : pattern) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [it, is_new] = edges_.emplace(edge, static_cast<uint32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = it->second;
  }
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  bool& is_first = is_first_byte_[static_cast<uint8_t>(pattern[0])];
  if (!is_first) first_bytes_ += pattern[0];
  is_first = true;
}

size_t AddedTokenFinder::NextStart(std::string_view text, size_t begin) const {
  // In most vocabularies all of them start with '<'.
  if (first_bytes_.size() == 1) return std::min(text.find(first_bytes_[0], begin), text.size());
  while (begin < text.size() && !is_first_byte_[static_cast<uint8_t>(text[begin])]) ++begin;
  return begin;
}

const AddedToken* AddedTokenFinder::Longest(std::string_view text, size_t* length) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto it = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    if (token_at_[node] < 0) continue;
    longest = &tokens_[static_cast<size_t>(token_at_[node])];
    *length = i + 1;
  }
  return longest;
}

void AddedTokenFinder::Cut(std::string_view text, bool with_specials, const Sink& sink) const {
  if (tokens_.empty()) {
    if (!text.empty()) sink(text, std::nullopt);
    return;
  }
  size_t done = 0;  // everything before has been given to the sink
  for (size_t i = NextStart(text, 0); i < text.size(); i = NextStart(text, i)) {
    size_t length = 0;
    const AddedToken* token = Longest(text.substr(i), &length);
    if (token == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i, end = i + length;
    i = end;
    if (token->special && !with_specials) continue;
    if (token->single_word && !IsWholeWord(text.substr(0, begin), text.substr(end))) continue;
    // White space that the match before has taken is not taken again.
    if (token->lstrip && begin > done) begin -= SpaceAtEnd(text.substr(done, begin - done));
    if (token->rstrip) end += SpaceAtStart(text.substr(end));
    if (begin > done) sink(text.substr(done, begin - done), std::nullopt);
    sink(text.substr(begin, end - begin), token->id);
    done = end;
  }
  if (done < text.size()) sink(text.substr(done), std::nullopt);
}

}  // namespace lockstep::data
