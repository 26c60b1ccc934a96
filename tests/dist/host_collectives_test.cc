// What the groups of the host send. What they compute: process_group_test.
#include "dist/groups/host_collectives.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "core/philox.h"
#include "core/tensor.h"
#include "dist/groups/in_process_transport.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kCount = 100'000;

// Counts what leaves, and takes its time for it.
class CountingTransport : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, double bytes_per_second)
      : inner_(std::move(inner)), bytes_per_second_(bytes_per_second) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void Run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
           Deadline deadline) override {
    int64_t bytes = 0;
    for (const Outgoing& m : outgoing) bytes += m.bytes;
    sent += bytes;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second_));
    inner_->Run(outgoing, incoming, deadline);
  }
  void Close() override { inner_->Close(); }
  void Interrupt() override { inner_->Interrupt(); }
  void Extend(Deadline deadline) override { inner_->Extend(deadline); }
  std::unique_ptr<Transport> Duplicate(const std::string& name) override {
    return inner_->Duplicate(name);
  }
  int64_t sent = 0;

 private:
  const std::unique_ptr<Transport> inner_;
  const double bytes_per_second_;
};

// One of several ranks: on a thread of its own.
struct Rank {
  CountingTransport& transport;
  HostCollectives& collectives;

  // The bytes that leave this rank for the sum of `x`.
  int64_t AllReduce(const Tensor& x) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    std::vector<int> peers;
    for (int p = 0; p < transport.size(); ++p) {
      if (p != transport.rank()) peers.push_back(p);
    }
    collectives.Agree(
        {CollectiveKind::kAllReduce, ReduceOp::kSum, x.dtype(), 0, x.numel(), ++sequence}, peers,
        {}, deadline);
    const int64_t before = transport.sent;
    collectives.AllReduce(ReduceOp::kSum, x.dtype(), x.raw_data(), x.numel(), deadline);
    return transport.sent - before;
  }
  int64_t sequence = 0;
};

// A rank for each of `packing`, over links that move so many bytes a second.
void RunRanks(const std::vector<Packing>& packing, double bytes_per_second,
              const std::function<void(Rank&)>& body) {
  auto transports = MakeInProcessTransports(static_cast<int>(packing.size()));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < packing.size(); ++r) {
    threads.emplace_back([&, r] {
      CountingTransport transport(std::move(transports[r]), bytes_per_second);
      HostCollectives collectives(transport, /*hashes=*/false, packing[r]);
      Rank rank{transport, collectives};
      body(rank);
    });
  }
  for (std::thread& t : threads) t.join();
}

// Dense, as gradients are, of magnitudes that vary.
float Gradient(int rank, int64_t i) {
  const auto at = [&](uint64_t j) {
    return ToUniform(Philox(9).At(static_cast<uint64_t>(rank), static_cast<uint64_t>(4 * i) + j));
  };
  return 1e-3f * (at(0) + at(1) + at(2) - at(3) - 1.0f);
}

Tensor Gradients(int rank, DType dtype) {
  const Tensor t = Tensor::Empty({kCount}, DType::kF32);
  for (int64_t i = 0; i < kCount; ++i) t.data<float>()[i] = Gradient(rank, i);
  return t.To(dtype);
}

constexpr double kFast = 1e12, kSlow = 4e6;

// Who packs sends fewer bytes, whoever else does, and all get the same bits as without.
TEST(HostCollectives, PacksForThoseWhoSayThatTheyDo) {
  using enum Packing;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<Tensor> unpacked(3);
    RunRanks({kNever, kNever, kNever}, kFast, [&](Rank& rank) {
      const Tensor x = unpacked[rank.transport.rank()] = Gradients(rank.transport.rank(), dtype);
      // Two thirds of the bytes to sum them, two thirds to have the sums.
      EXPECT_NEAR(rank.AllReduce(x), 4 * x.bytes() / 3, 16);
    });
    for (const std::vector<Packing>& packing :
         {std::vector{kAlways, kAlways, kAlways}, {kNever, kAlways, kNever}}) {
      RunRanks(packing, kFast, [&](Rank& rank) {
        const int r = rank.transport.rank();
        const Tensor x = Gradients(r, dtype);
        const double all = static_cast<double>(4 * x.bytes() / 3);
        const double packed = dtype == DType::kF32 ? 0.87 : 0.74;
        const auto sent = static_cast<double>(rank.AllReduce(x));
        if (packing[r] == kAlways) {
          EXPECT_LT(sent, packed * all);
        } else {
          EXPECT_GT(sent, 0.99 * all);
        }
        EXPECT_EQ(std::memcmp(x.raw_data(), unpacked[r].raw_data(), x.bytes()), 0);
      });
    }
  }
}

TEST(HostCollectives, DoesNotPackOtherTypesAndWhatIsSmall) {
  RunRanks({Packing::kAlways, Packing::kAlways}, kFast, [](Rank& rank) {
    for (const DType dtype : {DType::kF64, DType::kF16, DType::kI32}) {
      const Tensor x = Tensor::Zeros({kCount}, dtype);
      EXPECT_EQ(rank.AllReduce(x), x.bytes()) << dtype;
    }
    const Tensor small = Tensor::Zeros({5'000}, DType::kF32);
    EXPECT_EQ(rank.AllReduce(small), small.bytes());
  });
}

// A link that is slow shows after some messages.
TEST(HostCollectives, PacksBySlowLinks) {
  RunRanks({Packing::kAuto, Packing::kAuto}, kSlow, [](Rank& rank) {
    std::vector<int64_t> sent;
    const Tensor mine = Gradients(rank.transport.rank(), DType::kF32);
    const Tensor x = Tensor::Empty({kCount}, DType::kF32);
    for (int i = 0; i < 14; ++i) {
      x.CopyFrom(mine);
      sent.push_back(rank.AllReduce(x));
    }
    // Five must have waited for the one before; more are needed where the machine is busy.
    for (int i = 0; i < 6; ++i) EXPECT_EQ(sent[i], x.bytes());
    EXPECT_LT(*std::min_element(sent.begin() + 6, sent.end()), 87 * x.bytes() / 100);
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(x.data<float>()[i], Gradient(0, i) + Gradient(1, i));
    }
  });
}

}  // namespace
}  // namespace lockstep::dist
