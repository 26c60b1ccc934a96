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
  struct flock whole = {};  // from the start to the end, wherever that will be
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  int result;
  do {
    result = fcntl(fd, F_OFD_SETLK, &whole);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

// The note is only for people, so failures to read or write it do not matter.
std::string ReadNote(int fd) {
  std::array<char, 1024> text = {};
  const ssize_t bytes = pread(fd, text.data(), text.size(), 0);
  return {text.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0};
}

void WriteNote(int fd, std::string_view note) {
  if (ftruncate(fd, 0) != 0 || pwrite(fd, note.data(), note.size(), 0) < 0) return;
  fsync(fd);  // makes it visible on other machines
}

}  // namespace

FileLock::FileLock(const std::string& path, std::string_view note,
                   std::chrono::milliseconds patience) {
  // O_CLOEXEC: otherwise programs that this one starts would hold the lock until they end.
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
