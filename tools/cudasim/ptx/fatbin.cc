#include "tools/cudasim/ptx/fatbin.h"

#include <zstd.h>

#include <cstdint>
#include <cstring>

#include "tools/cudasim/ptx/text/module.h"

namespace cudasim {
namespace ptx {
namespace {

constexpr uint32_t kMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;  // an entry's kind; others are machine code

// A header, followed by `bytes` bytes of entries.
struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};

// An entry's header; `header_bytes` with parts that are not needed here, then the payload.
struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes;  // 0: the payload is the text itself
  uint32_t unknown[2];
  uint32_t architecture;
  uint32_t more_unknown[6];
  uint64_t raw_bytes;
};
static_assert(offsetof(Entry, architecture) == 0x1c && offsetof(Entry, raw_bytes) == 0x38);

std::string Decompress(const char* data, size_t bytes, size_t raw_bytes) {
  std::string text(raw_bytes, '\0');
  const size_t written = ZSTD_decompress(text.data(), text.size(), data, bytes);
  if (ZSTD_isError(written)) {
    throw Unsupported(std::string("the PTX in this program cannot be decompressed (") +
                      ZSTD_getErrorName(written) + "); nvcc's --no-compress stores it as it is");
  }
  return text;
}

}  // namespace

std::string ReadFatbin(const void* fatbin, int capability) {
  FatbinHeader header;
  std::memcpy(&header, fatbin, sizeof(header));
  if (header.magic != kMagic) throw Unsupported("this is no fat binary of nvcc's");
  const char* at = static_cast<const char*>(fatbin) + header.header_bytes;
  const char* const end = at + header.bytes;
  const char* chosen = nullptr;
  uint32_t architecture = 0;
  while (at < end) {
    Entry entry;
    std::memcpy(&entry, at, sizeof(entry));
    if (entry.kind == kPtx && entry.architecture <= static_cast<uint32_t>(capability) &&
        entry.architecture >= architecture) {
      chosen = at;
      architecture = entry.architecture;
    }
    at += entry.header_bytes + entry.payload_bytes;
  }
  if (chosen == nullptr) {
    throw Unsupported("this program has no PTX for compute capability " +
                      std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                      " or below: compile it by nvcc -arch=compute_80");
  }
  Entry entry;
  std::memcpy(&entry, chosen, sizeof(entry));
  const char* const payload = chosen + entry.header_bytes;
  std::string text = entry.compressed_bytes != 0
                         ? Decompress(payload, entry.compressed_bytes, entry.raw_bytes)
                         : std::string(payload, entry.payload_bytes);
  text.resize(std::strlen(text.c_str()));  // zeros follow
  return text;
}

}  // namespace ptx
}  // namespace cudasim
