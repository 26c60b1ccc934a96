#include "data/text/raw_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

}  // namespace

RawInput::RawInput(std::string path) : path_(std::move(path)), buffer_(kBufferBytes) {
  if (path_ != "-") file_.emplace(OpenForReading(path_));
}

std::span<const char> RawInput::Peek(size_t least) {
  while (end_ - begin_ < least && !at_end_) {
    if (begin_ > 0) {
      std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
      end_ -= begin_;
      begin_ = 0;
    }
    const int fd = file_ ? file_->fd() : STDIN_FILENO;
    const ssize_t got = read(fd, buffer_.data() + end_, buffer_.size() - end_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowIoError("read", file_ ? path_ : "standard input", errno);
    at_end_ = got == 0;
    hash_.Update(std::as_bytes(std::span(buffer_).subspan(end_, got)));
    end_ += got;
    bytes_read_ += got;
  }
  return std::span<const char>(buffer_).subspan(begin_, end_ - begin_);
}

}  // namespace lockstep::data
