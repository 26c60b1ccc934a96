#include "data/tokenizer/text_bytes.h"

#include <string>
#include <unordered_map>
#include <vector>

#include "core/error.h"

namespace lockstep::data {
namespace {

// Whether a text becomes this token; it may not have any tokens.
bool IsEncoded(const Tokenizer& tokenizer, const std::string& text, int32_t id) {
  try {
    return tokenizer.Encode(text) == std::vector{id};
  } catch (const InputError&) {
    return false;
  }
}

int64_t BytesOf(const Tokenizer& tokenizer, int32_t id) {
  if (id >= tokenizer.vocab_size() || id == tokenizer.end_of_text()) return 0;
  const std::string text = tokenizer.TokenText(id);
  const bool special = tokenizer.AddedId(text) == id && !IsEncoded(tokenizer, text, id);
  return special ? 0 : std::ssize(text);
}

}  // namespace

int64_t CountBytes(const EvalBatches& batches, const Tokenizer& tokenizer) {
  std::unordered_map<int32_t, int64_t> bytes_of;
  int64_t bytes = 0;
  Batch batch;
  for (int64_t i = 0; i < batches.size(); ++i) {
    batches.Read(i, &batch);
    for (const int32_t id : batch.targets) {
      if (id == kIgnoreIndex) continue;
      const auto [entry, is_new] = bytes_of.try_emplace(id, 0);
      if (is_new) entry->second = BytesOf(tokenizer, id);
      bytes += entry->second;
    }
  }
  return bytes;
}

}  // namespace lockstep::data
