#include "models/sample/encode_prompt.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::models {
namespace {

std::vector<int32_t> EncodeText(const std::string& text, const data::Tokenizer& tokenizer,
                                bool special_tokens) {
  if (!special_tokens) return tokenizer.Encode(text);
  std::vector<int32_t> ids = tokenizer.EncodeWithSpecials(text);
  const std::vector<int32_t> before = tokenizer.special_ids().before;
  if (ids.size() < before.size() || !std::equal(before.begin(), before.end(), ids.begin())) {
    ids.insert(ids.begin(), before.begin(), before.end());
  }
  return ids;
}

}  // namespace

std::vector<int32_t> EncodePrompt(const std::string& text, const data::Tokenizer& tokenizer,
                                  bool special_tokens, int64_t vocab_size) {
  std::vector<int32_t> ids = EncodeText(text, tokenizer, special_tokens);
  if (ids.empty()) {
    if (!tokenizer.end_of_text()) {
      throw InputError("the prompt is empty; give at least one character");
    }
    ids.push_back(*tokenizer.end_of_text());
  }
  for (int32_t id : ids) {
    if (id < vocab_size) continue;
    throw InputError(StrCat("token ", id, " of the prompt is not in the model's vocabulary of ",
                            vocab_size, ": the tokenizer belongs to another model"));
  }
  return ids;
}

}  // namespace lockstep::models
