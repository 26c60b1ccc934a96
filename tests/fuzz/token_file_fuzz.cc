// A token file of any content is either rejected with a message, or read without accesses outside
// the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/evaluation.h"
#include "data/token_file.h"

namespace {

constexpr int64_t kVocabSize = 50257;

// A file in memory with a path: "/proc/self/fd/N".
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(memfd_create("tokens", 0)) {
    LS_INVARIANT(fd_ >= 0);
    LS_INVARIANT(write(fd_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const MemoryFile memory(data, size);
  std::shared_ptr<const lockstep::data::TokenFile> file;
  try {
    file = std::make_shared<const lockstep::data::TokenFile>(memory.path(), kVocabSize);
  } catch (const InputError&) {
    return 0;
  }
  LS_INVARIANT(file->size() > 0 && file->max_token() < kVocabSize);
  std::vector<int32_t> tokens(file->size());
  file->Read(0, tokens);
  for (const int32_t token : tokens) LS_INVARIANT(token >= 0 && token <= file->max_token());
  if (file->size() >= 2) {
    const lockstep::data::EvalBatches batches(file, 3, 2);
    lockstep::data::Batch batch;
    int64_t num_targets = 0;
    for (int64_t i = 0; i < batches.size(); ++i) {
      batches.Read(i, &batch);
      num_targets += batch.num_targets;
    }
    LS_INVARIANT(num_targets == file->size() - 1);
  }
  return 0;
}
