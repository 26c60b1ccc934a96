// A tokenizer file of any content is rejected with a message, or gives a tokenizer that keeps its
// laws.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::InputError;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  std::unique_ptr<lockstep::data::Tokenizer> tokenizer;
  try {
    tokenizer = lockstep::data::Tokenizer::FromJson(json, "fuzz");
  } catch (const InputError&) {
    return 0;
  }
  const auto again = lockstep::data::Tokenizer::FromJson(tokenizer->ToJson(), "again");
  LS_INVARIANT(again->ToJson() == tokenizer->ToJson());
  // The file itself serves as text; a char tokenizer need not have all of its characters.
  try {
    const std::vector<int32_t> ids = tokenizer->Encode(json);
    for (const int32_t id : ids) LS_INVARIANT(id >= 0 && id < tokenizer->vocab_size());
    LS_INVARIANT(tokenizer->Decode(ids) == json);
    LS_INVARIANT(again->Encode(json) == ids);
  } catch (const InputError&) {
    LS_INVARIANT(tokenizer->name() == "char");
  }
  return 0;
}
