#include "dist/groups/in_process_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "dist/collective.h"

namespace lockstep::dist {
namespace {

struct Hub {
  explicit Hub(std::vector<int> ranks) : members(std::move(ranks)) {}

  const std::vector<int> members;
  std::mutex mutex;
  std::condition_variable changed;
  // Messages sent but not yet received, by sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;
  std::set<int> gone;
  // Of this one, by name and members; kept by their transports.
  std::map<std::pair<std::string, std::vector<int>>, std::weak_ptr<Hub>> parts;
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~InProcessTransport() override { InProcessTransport::Close(); }

  const std::vector<int>& members() const override { return hub_->members; }
  int rank() const override { return rank_; }

  void Run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
           Deadline deadline) override {
    // Keep sending to the others if a peer is gone, so that they do not take this rank for lost.
    std::optional<int> lost;
    for (const Outgoing& message : outgoing) {
      if (!Post(message) && !lost) lost = message.peer;
    }
    if (lost) {
      const std::lock_guard<std::mutex> lock(hub_->mutex);
      ThrowLost(*lost);
    }
    for (size_t i = 0; i < incoming.size(); ++i) Fetch(incoming, i, deadline);
  }

  // Run copies messages, so there is nothing else to do.
  void Close() override {
    const std::lock_guard<std::mutex> lock(hub_->mutex);
    hub_->gone.insert(rank_);
    hub_->changed.notify_all();
  }

  void Interrupt() override {
    const std::lock_guard<std::mutex> lock(hub_->mutex);
    interrupted_ = true;
    hub_->changed.notify_all();
  }

  void Extend(Deadline deadline) override {
    const std::lock_guard<std::mutex> lock(hub_->mutex);
    extended_ = std::max(extended_, deadline);
  }

  std::unique_ptr<Transport> Split(const std::string& name, std::vector<int> members) override {
    const std::lock_guard<std::mutex> lock(hub_->mutex);
    std::erase_if(hub_->parts, [](const auto& entry) { return entry.second.expired(); });
    auto& known = hub_->parts[{name, members}];
    auto hub = known.lock();
    if (hub == nullptr) known = hub = std::make_shared<Hub>(std::move(members));
    return std::make_unique<InProcessTransport>(std::move(hub), rank_);
  }

 private:
  // Returns false if the peer is gone.
  bool Post(const Outgoing& message) {
    std::vector<std::byte> bytes(static_cast<size_t>(message.bytes));
    if (!bytes.empty()) std::memcpy(bytes.data(), message.data, bytes.size());
    const std::lock_guard<std::mutex> lock(hub_->mutex);
    CheckNotInterrupted();
    if (IsLost(message.peer)) return false;
    hub_->mail[{rank_, message.peer}].push_back(std::move(bytes));
    hub_->changed.notify_all();
    return true;
  }

  void Fetch(std::span<const Incoming> all, size_t i, Deadline deadline) {
    const Incoming& message = all[i];
    std::vector<std::byte> bytes;
    {
      std::unique_lock<std::mutex> lock(hub_->mutex);
      auto& mail = hub_->mail[{message.peer, rank_}];
      const auto ready = [&] { return interrupted_ || !mail.empty() || IsLost(message.peer); };
      while (!hub_->changed.wait_until(lock, std::max(deadline, extended_), ready)) {
        if (std::chrono::steady_clock::now() >= std::max(deadline, extended_)) {
          ThrowTimeout(all.subspan(i));
        }
      }
      CheckNotInterrupted();
      // Messages sent before the sender left still count.
      if (mail.empty() || hub_->gone.count(rank_) != 0) ThrowLost(message.peer);
      bytes = std::move(mail.front());
      mail.pop_front();
    }
    LS_INVARIANT(static_cast<int64_t>(bytes.size()) == message.bytes, "a message from rank ",
                 message.peer, " has ", bytes.size(), " bytes instead of ", message.bytes);
    if (!bytes.empty()) std::memcpy(message.data, bytes.data(), bytes.size());
  }

  // The lock is held.
  void CheckNotInterrupted() const {
    if (interrupted_) {
      throw TransportError(TransportError::Cause::kInterrupted, {}, "the transport is interrupted");
    }
  }
  // The connection ends when either of this rank and the peer does.
  bool IsLost(int peer) const {
    return hub_->gone.count(peer) != 0 || hub_->gone.count(rank_) != 0;
  }
  [[noreturn]] void ThrowLost(int peer) const {
    std::vector<int> lost;
    for (const int r : hub_->members) {
      if (r != rank_ && IsLost(r)) lost.push_back(r);
    }
    throw TransportError(TransportError::Cause::kLostRank, lost,
                         StrCat("its connection to rank ", peer, " ended"));
  }
  [[noreturn]] void ThrowTimeout(std::span<const Incoming> waiting) const {
    std::set<int> peers;
    for (const Incoming& message : waiting) {
      if (hub_->mail[{message.peer, rank_}].empty()) peers.insert(message.peer);
    }
    throw TransportError(TransportError::Cause::kTimeout, {peers.begin(), peers.end()},
                         "messages did not come in time");
  }

  std::shared_ptr<Hub> hub_;
  const int rank_;
  bool interrupted_ = false;
  Deadline extended_ = Deadline::min();
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int size) {
  const auto hub = std::make_shared<Hub>(AllRanks(size));
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(hub, rank));
  }
  return transports;
}

}  // namespace lockstep::dist
