#include "data/tokenizer/id_tokenizer.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "data/tokenizer/gpt2_vocabulary.h"

namespace lockstep::data {

std::vector<int32_t> IdTokenizer::Encode(std::string_view text) const {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;
       at = text.find_first_not_of(kSpace, at)) {
    const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    int32_t id = -1;
    const auto [stop, code] = std::from_chars(text.data() + at, text.data() + end, id);
    if (code != std::errc() || stop != text.data() + end || id < 0 || id >= vocab_size_) {
      throw InputError(StrCat("'", text.substr(at, end - at), "' is not a token id below ",
                              vocab_size_,
                              "; without a tokenizer, give text as ids, such as \"464 2068\""));
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

std::string IdTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    LS_CHECK(id >= 0 && id < vocab_size_, "token ", id, " is outside the vocabulary of ",
             vocab_size_);
    text += StrCat(id, " ");
  }
  return text;
}

std::optional<int32_t> IdTokenizer::end_of_text() const {
  if (vocab_size_ < kGpt2VocabSize || vocab_size_ > (kGpt2VocabSize + 127) / 128 * 128) return {};
  return static_cast<int32_t>(kGpt2VocabSize - 1);
}

std::string IdTokenizer::ToJson() const { LS_CHECK(false, "an IdTokenizer cannot be saved"); }

}  // namespace lockstep::data
