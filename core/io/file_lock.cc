#include "core/io/file_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <thread>

#include "core/io/file.h"

namespace lockstep {
namespace {

int TryLock(int fd) {
  struct flock whole = {};  // from the start to wherever the end comes to be
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  int result;
  do {
    result = fcntl(fd, F_OFD_SETLK, &whole);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

// For people only: what cannot be read or written does not matter.
std::string ReadNote(int fd) {
  std::array<char, 1024> text = {};
  const ssize_t bytes = pread(fd, text.data(), text.size(), 0);
  return {text.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0};
}

void WriteNote(int fd, std::string_view note) {
  if (ftruncate(fd, 0) != 0 || pwrite(fd, note.data(), note.size(), 0) < 0) return;
  fsync(fd);  // other machines see what the server has
}

}  // namespace

FileLock::FileLock(const std::string& path, std::string_view note,
                   std::chrono::milliseconds patience) {
  // For the child of a fork, too, the lock would be held until it ends: O_CLOEXEC.
  do {
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) ThrowIoError("open", path, errno);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const int error = TryLock(fd_);
    if (error == 0) {
      state_ = State::kHeld;
      WriteNote(fd_, note);
      return;
    }
    if (error != EAGAIN && error != EACCES) {
      state_ = State::kUnsupported;
      why_ = std::generic_category().message(error);
      return;
    }
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  why_ = ReadNote(fd_);
}

FileLock::~FileLock() { close(fd_); }

}  // namespace lockstep
