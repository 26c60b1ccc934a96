// Hostile safetensors files: each is refused with an InputError, or all its tensors can be read,
// and what is written from them reads back the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/io/safetensors.h"
#include "core/io/safetensors_writer.h"

namespace lockstep {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

// Copies every byte, so that a sanitizer sees a span that leaves the file.
void CheckEntries(const SafetensorsFile& file, std::span<const std::byte> whole) {
  const std::byte* next = nullptr;
  for (const SafetensorsEntry& entry : file.entries()) {
    Require(entry.bytes.empty() || entry.bytes.data() >= whole.data() + 10);
    Require(next == nullptr || entry.bytes.data() == next);
    next = entry.bytes.data() + entry.bytes.size();
    Require(file.Find(entry.name) == &entry);
    const std::vector<std::byte> copy(entry.bytes.begin(), entry.bytes.end());
    try {
      const Tensor tensor = entry.ToTensor();
      Require(tensor.bytes() == static_cast<int64_t>(copy.size()));
      Require(copy.empty() || std::memcmp(tensor.raw_data(), copy.data(), copy.size()) == 0);
    } catch (const InputError&) {  // an unsupported dtype or number of dimensions
    }
  }
  Require(next == nullptr || next == whole.data() + whole.size());
}

void RoundTrip(const SafetensorsFile& file) {
  std::vector<SafetensorsItem> items;
  for (const SafetensorsEntry& entry : file.entries()) {
    try {
      items.push_back({entry.name, entry.dtype(), entry.shape, entry.bytes, {}});
    } catch (const InputError&) {
    }
  }
  std::vector<size_t> order;
  std::string written = SafetensorsHeader(items, file.metadata(), &order);
  for (const size_t i : order) {
    written.append(reinterpret_cast<const char*>(items[i].bytes.data()), items[i].bytes.size());
  }
  const SafetensorsFile again = SafetensorsFile::Parse(Bytes(written), "written");
  Require(again.entries().size() == items.size());
  for (const SafetensorsItem& item : items) {
    const SafetensorsEntry& entry = again.Get(item.name);
    Require(entry.dtype() == item.dtype && entry.shape == item.shape);
    Require(std::ranges::equal(entry.bytes, item.bytes));
  }
  for (const auto& [key, value] : file.metadata()) Require(again.metadata().at(key) == value);
}

void Try(std::span<const std::byte> bytes) {
  try {
    const SafetensorsFile file = SafetensorsFile::Parse(bytes, "fuzz");
    CheckEntries(file, bytes);
    RoundTrip(file);
  } catch (const InputError& error) {
    Require(std::string_view(error.what()).starts_with("fuzz: "));
  }
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  lockstep::Try(bytes);
  // Most changes of the text break the length before it. Try it with the right one, too.
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t brace = text.rfind('}');
  if (brace == std::string_view::npos || brace < 8) return 0;
  std::string repaired(text);
  const uint64_t length = brace + 1 - 8;
  for (int i = 0; i < 8; ++i) repaired[i] = static_cast<char>(length >> (8 * i));
  if (repaired == text) return 0;
  // A buffer of exactly that size, for the sanitizer.
  const std::vector<std::byte> exact(
      reinterpret_cast<const std::byte*>(repaired.data()),
      reinterpret_cast<const std::byte*>(repaired.data()) + repaired.size());
  lockstep::Try(exact);
  return 0;
}
