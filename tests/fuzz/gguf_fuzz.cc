// Hostile GGUF files: each is refused with an InputError, or all its tensors can be read, and its
// keys are a model's, or a tokenizer, or refused with an InputError.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "models/gpt/gguf/gguf_reader.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {
namespace {

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

template <class F>
void OrInputError(F f) {
  try {
    f();
  } catch (const InputError&) {
  }
}

void Try(std::span<const std::byte> bytes) {
  const GgufFile file = GgufFile::Parse(bytes, "fuzz");
  const std::byte *begin = bytes.data(), *end = begin + bytes.size();
  for (const auto& [name, entry] : file.tensors()) {
    Require(file.Find(name) == &entry);
    Require(entry.bytes.data() >= begin && entry.bytes.data() + entry.bytes.size() <= end);
    // Copies every byte, so that a sanitizer sees a span that leaves the file.
    Require(entry.ToTensor().shape() == entry.shape);
  }
  OrInputError([&] { FromHfConfig(HfConfigOf(file), "fuzz"); });
  OrInputError([&] {
    if (const auto tokenizer = TokenizerOf(file)) tokenizer->Encode("Some words, and 12 more.");
  });
}

}  // namespace
}  // namespace lockstep::models

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::models::OrInputError(
      [&] { lockstep::models::Try(std::as_bytes(std::span(data, size))); });
  return 0;
}
