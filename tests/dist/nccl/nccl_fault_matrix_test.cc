// Faults in a group of some of the ranks on GPUs: each rank of the group, and each outside of it,
// throws the cause and names rank, group and call. tests/dist/fault_matrix_test.cc does so for host
// groups, and has more faults.
#include <gmock/gmock-matchers.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/dist/gpu_ranks.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using Cause = CollectiveError::Cause;

constexpr int kWorld = 5;
const std::vector<int> kMembers = {1, 2, 4}, kOthers = {0, 3};

struct CollectiveCase {
  const char* name;
  std::function<void(ProcessGroup&)> run;
  const char* call;  // as errors show it
};

// Waits no longer than a diagnosis takes: without one, the test fails and does not hang.
constexpr auto kLongest = std::chrono::seconds(20);

void WaitUntil(const std::atomic<int>& count, int reaches) {
  const auto last = Clock::now() + kLongest;
  while (count < reaches && Clock::now() < last) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const CollectiveCase kCollectives[] = {
    {"AllReduce", [](ProcessGroup& g) { g.AllReduce(Ones(g, 100))->Synchronize(); },
     "all_reduce #2 (f32[100], sum)"},
    {"AllGather", [](ProcessGroup& g) { g.AllGather(Ones(g, 10), Ones(g, 30))->Synchronize(); },
     "all_gather #2 (f32[10])"},
    // With both others, as a send may end without its receiver.
    {"Exchange",
     [](ProcessGroup& g) {
       std::vector<Transfer> transfers;
       for (const int peer : {(g.rank() + 1) % 3, (g.rank() + 2) % 3}) {
         transfers.push_back({Transfer::Direction::kSend, Ones(g, 10), peer});
         transfers.push_back({Transfer::Direction::kReceive, Ones(g, 10), peer});
       }
       g.Exchange(std::move(transfers))->Synchronize();
     },
     "exchange #1"},
};

struct FaultCase {
  const char* name;
  // What the rank at fault does instead of the call.
  std::function<void(ProcessGroup&, const std::atomic<int>& failed)> run;
  Cause cause;
  const char* words;       // in every rank's error; % is the rank at fault
  bool by_itself = false;  // it has no error of the group
  bool check = false;      // dist.check=full
};

const FaultCase kFaults[] = {
    {"Late", [](ProcessGroup&, const std::atomic<int>& failed) { WaitUntil(failed, kWorld - 1); },
     Cause::kTimeout, "it did not end within 3 s; rank % did not take part, its last ",
     /*by_itself=*/true},
    {"Throws",
     [](ProcessGroup&, const std::atomic<int>&) { throw InputError("shard 7 is truncated"); },
     Cause::kAborted, "rank % gave up: its group was destroyed by an exception",
     /*by_itself=*/true},
    {"Ends", [](ProcessGroup&, const std::atomic<int>&) {}, Cause::kMismatch,
     "rank % has left the group", /*by_itself=*/true},
    {"CallsSomethingElse",
     [](ProcessGroup& g, const std::atomic<int>&) { g.Broadcast(Ones(g, 7), 0)->Synchronize(); },
     Cause::kMismatch, "rank % broadcast #2 (f32[7], from rank 1)", /*by_itself=*/false,
     /*check=*/true},
};

// By their indices.
class NcclFaultMatrixTest : public testing::TestWithParam<std::tuple<size_t, size_t>> {};

TEST_P(NcclFaultMatrixTest, IsDiagnosedOnEveryRank) {
  const FaultCase& fault = kFaults[std::get<0>(GetParam())];
  const CollectiveCase& collective = kCollectives[std::get<1>(GetParam())];
  const bool is_exchange = std::string(collective.name) == "Exchange";
  if (is_exchange && fault.check) GTEST_SKIP() << "only its peers compare an exchange";
  const auto at_fault = static_cast<int>((std::get<0>(GetParam()) + std::get<1>(GetParam())) % 3);
  const int culprit = kMembers[static_cast<size_t>(at_fault)];
  std::string words = fault.words;
  for (size_t at; (at = words.find('%')) != std::string::npos;)
    words.replace(at, 1, std::to_string(culprit));
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  options.check_every_call = fault.check;
  std::atomic<int> ready{0}, failed{0};
  RUN_OR_SKIP(
      kWorld,
      [&](ProcessGroup& g) {
        const bool is_member = IndexOf(kMembers, g.rank()) >= 0;
        const auto group = g.Split(is_member ? "some" : "others", is_member ? kMembers : kOthers);
        try {
          group->Barrier()->Synchronize();
          ++ready;
          WaitUntil(ready, kWorld);
          if (is_member && group->rank() == at_fault) {
            fault.run(*group, failed);
          } else if (is_member) {
            collective.run(*group);
          } else {
            const auto last = Clock::now() + kLongest;
            while (Clock::now() < last) group->AllReduce(Ones(g, 5))->Synchronize();
          }
        } catch (const CollectiveError& e) {
          ++failed;
          EXPECT_EQ(e.cause(), fault.cause) << e.what();
          // Of two peers, which is wrong cannot be told.
          if (is_exchange && fault.cause == Cause::kMismatch) {
            EXPECT_THAT(e.culprits(), Contains(culprit)) << e.what();
          } else {
            EXPECT_THAT(e.culprits(), ElementsAre(culprit)) << e.what();
          }
          throw;
        }
      },
      options);
  for (int r = 0; r < kWorld; ++r) {
    const std::string& error = errors[static_cast<size_t>(r)];
    if (r == culprit && fault.by_itself) {
      EXPECT_EQ(error, std::string(fault.name) == "Throws" ? "shard 7 is truncated" : "");
    } else if (IndexOf(kMembers, r) < 0) {
      EXPECT_THAT(error, AllOf(HasSubstr(StrCat("rank ", r, ", group 'others', all_reduce #")),
                               HasSubstr(words), HasSubstr(" of group 'some'")));
    } else {
      EXPECT_THAT(error,
                  AllOf(HasSubstr(StrCat("rank ", r, ", group 'some', ")), HasSubstr(words)));
      if (r != culprit) {
        EXPECT_THAT(error, HasSubstr(StrCat("'some', ", collective.call)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, NcclFaultMatrixTest,
                         testing::Combine(testing::Range(size_t{0}, std::size(kFaults)),
                                          testing::Range(size_t{0}, std::size(kCollectives))),
                         [](const auto& info) {
                           return std::string(kFaults[std::get<0>(info.param)].name) +
                                  kCollectives[std::get<1>(info.param)].name;
                         });

}  // namespace
}  // namespace lockstep::dist
