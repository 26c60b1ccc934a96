// A transport that counts what a rank sends, also what the groups do that are split from it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dist/groups/transport.h"

namespace lockstep::dist {

class CountingTransport : public Transport {
 public:
  explicit CountingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  const std::vector<int>& members() const override { return inner_->members(); }
  int rank() const override { return inner_->rank(); }
  AwakeClock::time_point Run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                             Deadline deadline) override {
    for (const Outgoing& m : outgoing) {
      ++all_->messages;
      all_->bytes += m.bytes;
      peers.insert(m.peer);
    }
    for (const Incoming& m : incoming) peers.insert(m.peer);
    return inner_->Run(outgoing, incoming, deadline);
  }
  void Close() override { inner_->Close(); }
  void Interrupt() override { inner_->Interrupt(); }
  void Extend(Deadline deadline) override { inner_->Extend(deadline); }
  std::unique_ptr<Transport> Split(const std::string& name, std::vector<int> members) override {
    auto part = std::make_unique<CountingTransport>(inner_->Split(name, std::move(members)));
    part->all_ = all_;
    return part;
  }

  std::atomic<int64_t> messages = 0, bytes = 0;  // sent
  std::set<int> peers;                           // with which there were messages

 private:
  const std::unique_ptr<Transport> inner_;
  CountingTransport* all_ = this;  // which outlives this
};

// How many messages each of this many ranks sends for a check: at most 7 in each round.
inline int64_t MessagesOfACheck(int size) {
  int64_t messages = 0;
  for (int64_t hop = 1; hop < size; hop *= 8) {
    messages += std::min<int64_t>(7, (size - 1) / hop);
  }
  return messages;
}

}  // namespace lockstep::dist
