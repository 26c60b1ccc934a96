#include "core/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/io/file.h"

namespace lockstep {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const FileDescriptor file = OpenForReading(path_);
  const size_t size = static_cast<size_t>(file.size());
  if (size == 0) return;  // mmap refuses length 0
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (address == MAP_FAILED) ThrowIoError("map", path_, errno);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    MappedFile moved(std::move(other));
    std::swap(path_, moved.path_);
    std::swap(bytes_, moved.bytes_);
  }
  return *this;
}

}  // namespace lockstep
