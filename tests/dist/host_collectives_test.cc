// What host groups send; process_group_test checks what they compute.
#include "dist/groups/host_collectives.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/tensor.h"
#include "tests/dist/ranks.h"

namespace lockstep::dist {
namespace {

class CountingTransport : public Transport {
 public:
  explicit CountingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  const std::vector<int>& members() const override { return inner_->members(); }
  int rank() const override { return inner_->rank(); }
  void Run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
           Deadline deadline) override {
    for (const Outgoing& m : outgoing) sent += m.bytes;
    inner_->Run(outgoing, incoming, deadline);
  }
  void Close() override { inner_->Close(); }
  void Interrupt() override { inner_->Interrupt(); }
  void Extend(Deadline deadline) override { inner_->Extend(deadline); }
  std::unique_ptr<Transport> Split(const std::string& name, std::vector<int> members) override {
    return inner_->Split(name, std::move(members));
  }
  int64_t sent = 0;

 private:
  const std::unique_ptr<Transport> inner_;
};

TEST(HostCollectives, AnAllReduceSendsWhatARingSends) {
  constexpr int kRanks = 3;
  auto ends = test::MakeEnds(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      CountingTransport transport(std::move(ends[r].transport));
      HostCollectives collectives(transport, /*hashes=*/false);
      for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
        const Tensor x = Tensor::Zeros({100'000}, dtype);
        transport.sent = 0;
        collectives.AllReduce(ReduceOp::kSum, dtype, x.raw_data(), x.numel(),
                              std::chrono::steady_clock::now() + std::chrono::minutes(5));
        // Two thirds of the bytes for reduce_scatter, two thirds for all_gather.
        EXPECT_NEAR(transport.sent, 4 * x.bytes() / 3, 16) << dtype;
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace lockstep::dist
