// A tokenizer file of any content is rejected with a message, or gives a tokenizer that keeps its
// laws. Some seeds are files of Lockstep, others are Hugging Face's.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/tokenizer/tokenizer.h"

namespace {

using lockstep::data::Tokenizer;

void CheckLaws(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool specials : {false, true}) {
    const std::vector<int32_t> ids =
        specials ? tokenizer.EncodeWithSpecials(text) : tokenizer.Encode(text);
    for (const int32_t id : ids) LS_INVARIANT(id >= 0 && id < tokenizer.vocab_size());
    LS_INVARIANT(ids == (specials ? tokenizer.EncodeWithSpecials(text) : tokenizer.Encode(text)));
    const std::string decoded = tokenizer.Decode(ids);
    std::string joined;
    for (const int32_t id : ids) joined += tokenizer.TokenText(id);
    LS_INVARIANT(joined.ends_with(decoded));  // all but what Decode drops at the start
    // Hugging Face's may normalize text.
    if (tokenizer.name() != "bpe") LS_INVARIANT(decoded == text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::InputError;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = Tokenizer::FromJson(json, "fuzz");
  } catch (const InputError&) {
    return 0;
  }
  const auto again = Tokenizer::FromJson(tokenizer->ToJson(), "again");
  LS_INVARIANT(again->ToJson() == tokenizer->ToJson());
  // The file itself serves as text, which a tokenizer may refuse: a char tokenizer need not have
  // all of its characters, and a file's pattern may take too long.
  try {
    CheckLaws(*tokenizer, json);
    LS_INVARIANT(again->Encode(json) == tokenizer->Encode(json));
  } catch (const InputError&) {
    LS_INVARIANT(tokenizer->name() != "byte");
  }
  return 0;
}
