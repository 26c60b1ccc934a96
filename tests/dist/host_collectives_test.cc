// What host groups send; process_group_test and many_ranks_test check what they compute.
#include "dist/groups/host_collectives.h"

#include <gmock/gmock-matchers.h>

#include <atomic>
#include <thread>

#include "core/tensor.h"
#include "tests/dist/counting_transport.h"
#include "tests/dist/ranks.h"

namespace lockstep::dist {
namespace {

Transport::Deadline InTime() { return AwakeClock::now() + std::chrono::seconds(30); }

// Runs `body` on a thread per rank.
void OnRanks(int size, const std::function<void(CountingTransport&, HostCollectives&)>& body) {
  auto ends = test::MakeEnds(size);
  std::vector<std::thread> threads;
  for (test::End& end : ends) {
    threads.emplace_back([&] {
      CountingTransport transport(std::move(end.transport));
      HostCollectives collectives(transport, /*hashes=*/false);
      body(transport, collectives);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(HostCollectives, AnAllReduceSendsWhatARingSends) {
  OnRanks(3, [](CountingTransport& transport, HostCollectives& collectives) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      const Tensor x = Tensor::Zeros({100'000}, dtype);
      transport.bytes = 0;
      collectives.AllReduce(ReduceOp::kSum, dtype, x.raw_data(), x.numel(), InTime());
      // Two thirds of the bytes for reduce_scatter, two thirds for all_gather.
      EXPECT_NEAR(transport.bytes, 4 * x.bytes() / 3, 16) << dtype;
    }
  });
}

Collective Call(int64_t number) {
  return {CollectiveKind::kAllReduce, ReduceOp::kSum, DType::kF32, 0, 8, number};
}

// For two ranks, a message each way.
TEST(HostCollectives, WhatAllHearOfAllTakesFewMessages) {
  for (const int size : {1, 2, 3, 8, 9, 70}) {
    OnRanks(size, [size](CountingTransport& transport, HostCollectives& collectives) {
      const int64_t messages = MessagesOfACheck(size);
      EXPECT_EQ(size <= 8 ? size - 1 : size == 9 ? 8 : 15, messages);
      EXPECT_TRUE(collectives.CheckCall(Call(1), 0, {}, InTime()));
      EXPECT_EQ(transport.messages, messages);
      transport.messages = transport.bytes = 0;
      std::vector<int64_t> all(static_cast<size_t>(3 * size), -1);
      const std::vector<int64_t> mine(3, transport.rank());
      collectives.AllGather(DType::kI64, mine.data(), all.data(), 3, InTime());
      for (int64_t i = 0; i < 3 * size; ++i) ASSERT_EQ(all[static_cast<size_t>(i)], i / 3);
      EXPECT_EQ(transport.bytes, (size - 1) * 3 * 8);
      EXPECT_LE(transport.messages, 2 * messages);
      EXPECT_LE(std::ssize(transport.peers), std::min<int64_t>(size - 1, 2 * messages));
    });
  }
}

// As of a rank that skips a block of a sharded model: its call is like the others'.
TEST(HostCollectives, CallsForDifferentPurposesDiffer) {
  for (const int odd : {0, 2}) {
    OnRanks(3, [&](CountingTransport& transport, HostCollectives& collectives) {
      const uint64_t purpose = transport.rank() == odd ? 5 : 4;
      try {
        collectives.CheckCall(Call(1), purpose, {}, InTime());
        ADD_FAILURE() << "rank " << transport.rank() << " has not noticed";
      } catch (const MismatchError& e) {
        EXPECT_EQ(e.culprits, std::vector<int>{odd});
        EXPECT_THAT(e.what(), testing::HasSubstr("makes this call for another purpose"));
      }
    });
  }
}

// Whichever rank is the odd one, all hear that it is, though none hears all calls.
TEST(HostCollectives, AllHearThatCallsDiffer) {
  constexpr int kRanks = 70;
  for (const int odd : {0, 7, 8, 33, 69}) {
    std::atomic<int> heard{0};
    OnRanks(kRanks, [&](CountingTransport& transport, HostCollectives& collectives) {
      EXPECT_TRUE(collectives.CheckCall(Call(1), 0, {}, InTime()));
      heard +=
          collectives.CheckCall(Call(transport.rank() == odd ? 3 : 2), 0, {}, InTime()) ? 0 : 1;
    });
    EXPECT_EQ(heard, kRanks) << odd;
  }
  // Two halves.
  std::atomic<int> heard{0};
  OnRanks(kRanks, [&](CountingTransport& transport, HostCollectives& collectives) {
    heard += collectives.CheckCall(Call(transport.rank() / 35), 0, {}, InTime()) ? 0 : 1;
  });
  EXPECT_EQ(heard, kRanks);
}

}  // namespace
}  // namespace lockstep::dist
