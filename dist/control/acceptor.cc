#include "dist/control/acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "dist/control/handshake.h"

namespace lockstep::dist {
namespace {

// The delay between attempts while descriptors are missing.
constexpr auto kPause = std::chrono::milliseconds(100);

FileDescriptor OpenSpare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

Acceptor::Acceptor(Socket listener) : listener_(std::move(listener)), spare_(OpenSpare()) {}

Socket Acceptor::AcceptNow() const {
  return Socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Socket Acceptor::Accept() {
  Socket socket = AcceptNow();
  if (socket.fd() >= 0) return socket;
  const int code = errno;
  if (code == EAGAIN || code == EINTR || code == ECONNABORTED) return {};
  if (IsOutOfDescriptors(code)) {
    if (!std::exchange(warned_, true)) {
      std::fprintf(stderr, "warning: this rank cannot accept another connection: %s\n",
                   SystemErrorText(code).c_str());
    }
    spare_ = FileDescriptor();
    socket = AcceptNow();
    const bool heard = socket.fd() >= 0;
    if (heard) TurnAway(socket, DescriptorLimit());
    socket = Socket();
    spare_ = OpenSpare();
    if (heard) return {};
  }
  retry_at_ = Clock::now() + kPause;
  return {};
}

void Acceptor::TurnAway(const Socket& socket, int64_t limit) {
  handshake::Hello hello;
  hello.magic = handshake::kNoRoomMagic;
  hello.limit = limit;
  // Never blocks: the buffer of a new connection has room for it.
  send(socket.fd(), &hello, sizeof(hello), MSG_NOSIGNAL);
}

}  // namespace lockstep::dist
