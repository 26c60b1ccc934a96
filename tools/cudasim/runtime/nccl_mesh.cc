// Moving bytes between ranks.
#include "nccl_mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>

namespace cudasim::runtime {
namespace {

constexpr int kTickMs = 20;

// Precedes the bytes, so that ranks notice if they do different things.
struct Envelope {
  uint64_t size;
  char what[56];
};

Envelope Seal(const Transfer& transfer) {
  Envelope envelope = {};
  envelope.size = transfer.size;
  std::snprintf(envelope.what, sizeof(envelope.what), "%s", transfer.what.c_str());
  return envelope;
}

}  // namespace

// A transfer in progress.
struct Mesh::Progress {
  Transfer transfer;
  Envelope envelope = {};
  size_t done = 0;  // Of the envelope and the bytes.

  size_t total() const { return sizeof(Envelope) + transfer.size; }
  // The next bytes to move.
  char* at() {
    return done < sizeof(Envelope) ? reinterpret_cast<char*>(&envelope) + done
                                   : transfer.data + (done - sizeof(Envelope));
  }
  size_t left() const { return done < sizeof(Envelope) ? sizeof(Envelope) - done : total() - done; }
};

Mesh::~Mesh() {
  for (const int fd : sockets_) {
    if (fd >= 0) close(fd);
  }
}

ncclResult_t Mesh::Fail(ncclResult_t result, std::string error) {
  error_ = std::move(error);
  return result;
}

ncclResult_t Mesh::Advance(Progress* progress, bool* moved) {
  const Transfer& transfer = progress->transfer;
  const int fd = sockets_[transfer.peer];
  while (progress->done < progress->total()) {
    const ssize_t bytes =
        transfer.send ? send(fd, progress->at(), progress->left(), MSG_DONTWAIT | MSG_NOSIGNAL)
                      : recv(fd, progress->at(), progress->left(), MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return ncclSuccess;
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {
      return Fail(ncclRemoteError, "rank " + std::to_string(transfer.peer) + " is gone");
    }
    const bool in_envelope = progress->done < sizeof(Envelope);
    progress->done += static_cast<size_t>(bytes);
    *moved = true;
    if (transfer.send || !in_envelope || progress->done < sizeof(Envelope)) continue;
    const Envelope expected = Seal(transfer);
    if (std::memcmp(&expected, &progress->envelope, sizeof(expected)) != 0) {
      progress->envelope.what[sizeof(Envelope::what) - 1] = '\0';
      return Fail(ncclInvalidUsage, "rank " + std::to_string(rank_) + " does " + expected.what +
                                        " (" + std::to_string(expected.size) +
                                        " bytes), but rank " + std::to_string(transfer.peer) +
                                        " does " + progress->envelope.what + " (" +
                                        std::to_string(progress->envelope.size) + " bytes)");
    }
  }
  return ncclSuccess;
}

ncclResult_t Mesh::Exchange(std::vector<Transfer> transfers) {
  // By peer and direction.
  std::map<std::pair<int, bool>, std::deque<Progress>> queues;
  for (Transfer& transfer : transfers) {
    Progress progress;
    if (transfer.send) progress.envelope = Seal(transfer);
    const std::pair<int, bool> key = {transfer.peer, transfer.send};
    progress.transfer = std::move(transfer);
    queues[key].push_back(std::move(progress));
  }
  while (!queues.empty()) {
    if (aborted()) return Fail(ncclInternalError, "aborted");
    bool moved = false;
    std::vector<pollfd> waiting;
    for (auto queue = queues.begin(); queue != queues.end();) {
      Progress& first = queue->second.front();
      const ncclResult_t result = Advance(&first, &moved);
      if (result != ncclSuccess) return result;
      const auto events = static_cast<short>(queue->first.second ? POLLOUT : POLLIN);
      waiting.push_back({sockets_[queue->first.first], events, 0});
      if (first.done == first.total()) queue->second.pop_front();
      queue = queue->second.empty() ? queues.erase(queue) : std::next(queue);
    }
    if (!moved && !queues.empty()) poll(waiting.data(), waiting.size(), kTickMs);
  }
  return ncclSuccess;
}

}  // namespace cudasim::runtime
