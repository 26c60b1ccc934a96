// A file of any bytes is either rejected with a message, or its documents are well-formed UTF-8,
// none above the limit, and the same when reading begins at any of them. The first byte chooses how
// it is read.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/text/document_reader.h"
#include "data/utf8.h"

namespace {

using namespace lockstep;
using data::DocumentUnit;

constexpr int64_t kLimit = 1 << 16;

// Stops after 1 MiB: a few bytes can be gigabytes of documents.
std::vector<data::RawDocument> ReadAll(const std::vector<std::string>& files,
                                       const data::TextOptions& options, data::TextPosition start) {
  data::DocumentReader reader(files, options, start);
  std::vector<data::RawDocument> documents;
  int64_t bytes = 0;
  for (data::RawDocument document; bytes < (1 << 20) && reader.Next(&document);) {
    bytes += static_cast<int64_t>(document.bytes.size()) + 1;
    documents.push_back(document);
  }
  return documents;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size == 0) return 0;
  const data::TextOptions options{.type = input[0] % 4 == 0 ? "jsonl" : "text",
                                  .unit = static_cast<DocumentUnit>(input[0] / 4 % 3),
                                  .max_document_bytes = kLimit};
  const int fd = memfd_create("text", 0);
  LS_INVARIANT(fd >= 0 && write(fd, input + 1, size - 1) == static_cast<ssize_t>(size - 1));
  const std::vector<std::string> files = {"/proc/self/fd/" + std::to_string(fd)};
  try {
    const std::vector<data::RawDocument> documents = ReadAll(files, options, {});
    for (const data::RawDocument& document : documents) {
      LS_INVARIANT(static_cast<int64_t>(document.bytes.size()) <= kLimit);
      const data::DocumentText text = TextOf(document, files, options);
      LS_INVARIANT(data::ValidUtf8Prefix(text.text) == text.text.size());
    }
    if (!documents.empty()) {
      const data::RawDocument& middle = documents[documents.size() / 2];
      const auto rest = ReadAll(files, options, middle.position);
      LS_INVARIANT(!rest.empty() && rest[0].bytes == middle.bytes);
    }
  } catch (const InputError& error) {
    LS_INVARIANT(std::string(error.what()).size() < 2000);
  }
  close(fd);
  return 0;
}
