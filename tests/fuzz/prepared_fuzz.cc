// What describes prepared tokens: a manifest, an index of documents, or data.mix, by the first
// byte. Any bytes are either rejected with a message, or mean the same when they are written and
// read again.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"
#include "data/document_index.h"
#include "data/mixture.h"
#include "data/prepare/manifest.h"

namespace {

using namespace lockstep;

void CheckManifest(std::string_view text) {
  const data::Manifest manifest = data::Manifest::FromJson(text, "manifest");
  const std::string json = manifest.ToJson();
  LS_INVARIANT(data::Manifest::FromJson(json, "again").ToJson() == json);
}

void CheckIndex(std::string_view bytes) {
  const int fd = memfd_create("index", 0);
  LS_INVARIANT(fd >= 0);
  LS_INVARIANT(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  try {
    const data::DocumentIndex index("/proc/self/fd/" + std::to_string(fd), 1000);
    int64_t last = -1;
    for (const uint64_t start : index.starts()) {
      LS_INVARIANT(start < 1000 && static_cast<int64_t>(start) > last);
      last = static_cast<int64_t>(start);
    }
  } catch (const InputError&) {
  }
  close(fd);
}

void CheckMixture(std::string_view text) {
  std::vector<int64_t> weights;
  for (const data::MixtureItem& item : data::ParseMixture(text)) {
    LS_INVARIANT(!item.path.empty() && item.weight > 0);
    weights.push_back(item.weight);
  }
  const auto place = data::MixtureSchedule(weights)(12345678901);
  LS_INVARIANT(place.source < static_cast<int64_t>(weights.size()) && place.index >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(input) + 1, size - 1);
  try {
    if (input[0] == 'm') CheckManifest(rest);
    if (input[0] == 'i') CheckIndex(rest);
    if (input[0] == 'x') CheckMixture(rest);
  } catch (const InputError&) {
  }
  return 0;
}
