#include "tests/dist/faulty_transport.h"

#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

namespace lockstep::dist::test {
namespace {

using Kind = TransportFault::Kind;

class FaultyTransport : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, const TransportFault& fault)
      : inner_(std::move(inner)), fault_(fault) {}

  const std::vector<int>& members() const override { return inner_->members(); }
  int rank() const override { return inner_->rank(); }

  AwakeClock::time_point Run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                             Deadline deadline) override {
    if (++runs_ < fault_.at_run) return inner_->Run(outgoing, incoming, deadline);
    switch (fault_.kind) {
      case Kind::kDelay:
        std::this_thread::sleep_for(fault_.delay);
        break;
      case Kind::kDrop:
        return inner_->Run({}, incoming, deadline);
      case Kind::kCorrupt:
        if (!done_ && !outgoing.empty()) return RunCorrupted(outgoing, incoming, deadline);
        break;
      case Kind::kDisconnect:
        inner_->Close();
        break;
    }
    return inner_->Run(outgoing, incoming, deadline);
  }

  void Close() override { inner_->Close(); }
  void Interrupt() override { inner_->Interrupt(); }
  void Extend(Deadline deadline) override { inner_->Extend(deadline); }
  // Runs without the fault.
  std::unique_ptr<Transport> Split(const std::string& name, std::vector<int> members) override {
    return inner_->Split(name, std::move(members));
  }

 private:
  AwakeClock::time_point RunCorrupted(std::span<const Outgoing> outgoing,
                                      std::span<const Incoming> incoming, Deadline deadline) {
    done_ = true;
    std::vector<Outgoing> changed(outgoing.begin(), outgoing.end());
    Outgoing& victim = changed.front();
    copy_.resize(static_cast<size_t>(victim.bytes));
    std::memcpy(copy_.data(), victim.data, copy_.size());
    copy_[copy_.size() / 2] ^= std::byte{4};
    victim.data = copy_.data();
    return inner_->Run(changed, incoming, deadline);
  }

  const std::unique_ptr<Transport> inner_;
  const TransportFault fault_;
  int64_t runs_ = 0;
  bool done_ = false;
  std::vector<std::byte> copy_;
};

}  // namespace

std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> transport,
                                               const TransportFault& fault) {
  return std::make_unique<FaultyTransport>(std::move(transport), fault);
}

}  // namespace lockstep::dist::test
