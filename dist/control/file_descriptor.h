// An owned file descriptor, and messages for when the system has none left.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace lockstep::dist {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }  // -1: none

 private:
  int fd_ = -1;
};

// How many descriptors this process may have open.
int64_t DescriptorLimit();
// Raises it to what the system allows: the default of many shells, 1024, is for programs with few.
void RaiseDescriptorLimit();
// Whether the errno value means that no descriptor is left, in this process or system-wide.
bool IsOutOfDescriptors(int code);
// How to allow more than `limit` of them.
std::string DescriptorHint(int64_t limit);
// strerror, with DescriptorHint where this process is out of descriptors.
std::string SystemErrorText(int code);

}  // namespace lockstep::dist
