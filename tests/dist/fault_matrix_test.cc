// Every kind of fault, in every collective, on every rank, in groups of all ranks and of some,
// which are the root, inner ranks and leaves of the control plane's tree: the error that all ranks
// get, and that none of them is left with wrong data. dist/groups/README.md has the table.
#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "dist/groups/host_group.h"
#include "tests/dist/faulty_transport.h"
#include "tests/dist/ranks.h"

namespace lockstep::dist::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using Cause = CollectiveError::Cause;

constexpr int kRanks = 3;
// Where the group is: its ranks in a world of that size.
struct Place {
  int world;
  std::vector<int> members;
  const char* group;

  int Member(int rank) const { return members[static_cast<size_t>(rank)]; }
};
const Place kAll = {kRanks, {0, 1, 2}, "world"};
// 0 -+- 1
//    +- 2 --- 3
//    +- 4 -+- 5
//          +- 6 --- 7
constexpr int kFanOut = 2;
const Place kSome = {5, {0, 2, 4}, "some"};
const Place kOthers = {8, {3, 6, 7}, "some"};  // without rank 0
// Large enough that collectives send all kinds of their messages.
constexpr int64_t kCount = 30'000;
// The timeout of ranks that wait only for the fault; long enough for a busy machine.
constexpr auto kTimeout = std::chrono::seconds(4);

Tensor Filled(int64_t n, double value) { return Tensor::Full({n}, value, DType::kF32); }

// ---- The collectives: each calls, waits, and returns the actual and the expected data ----

struct Data {
  Tensor got;
  double expected;
};
struct CollectiveCase {
  const char* name;
  // Runs with `n` elements; kCount on ranks without a fault.
  std::function<Data(ProcessGroup&, int64_t n)> run;
};

double Sum() { return kRanks * (kRanks + 1) / 2.0; }

const CollectiveCase kCollectives[] = {
    {"all_reduce",
     [](ProcessGroup& g, int64_t n) {
       const Tensor x = Filled(n, g.rank() + 1);
       g.AllReduce(x)->Wait();
       return Data{x, Sum()};
     }},
    {"small all_reduce",
     [](ProcessGroup& g, int64_t n) {
       const Tensor x = Filled(n / 1000, g.rank() + 1);
       g.AllReduce(x)->Wait();
       return Data{x, Sum()};
     }},
    {"reduce_scatter",
     [](ProcessGroup& g, int64_t n) {
       const Tensor x = Filled(n * kRanks, g.rank() + 1), y = Filled(n, 0);
       g.ReduceScatter(x, y)->Wait();
       return Data{y, Sum()};
     }},
    {"all_gather",
     [](ProcessGroup& g, int64_t n) {
       const Tensor x = Filled(n, 7), y = Filled(n * kRanks, 0);
       g.AllGather(x, y)->Wait();
       return Data{y, 7};
     }},
    {"broadcast",
     [](ProcessGroup& g, int64_t n) {
       const Tensor x = Filled(n, g.rank() == 0 ? 5 : 0);
       g.Broadcast(x, 0)->Wait();
       return Data{x, 5};
     }},
    {"all_to_all",
     [](ProcessGroup& g, int64_t n) {
       const Tensor x = Filled(n * kRanks, 3), y = Filled(n * kRanks, 0);
       g.AllToAll(x, y)->Wait();
       return Data{y, 3};
     }},
    {"exchange",  // around a ring
     [](ProcessGroup& g, int64_t n) {
       const Tensor x = Filled(n, 9), y = Filled(kCount, 0);
       g.Exchange({{Transfer::Direction::kSend, x, (g.rank() + 1) % kRanks},
                   {Transfer::Direction::kReceive, y, (g.rank() + kRanks - 1) % kRanks}})
           ->Wait();
       return Data{y, 9};
     }},
    {"barrier",
     [](ProcessGroup& g, int64_t) {
       g.Barrier()->Wait();
       return Data{Filled(1, 1), 1};
     }},
};

// ---- The faults ----

struct FaultCase {
  const char* name;
  std::optional<TransportFault::Kind> transport;
  // What the rank at fault does instead of the call.
  std::function<void(ProcessGroup&, const CollectiveCase&, const std::atomic<int>& failed)> rank;
  std::optional<Cause> cause;  // nullopt: only time is lost
  const char* words;           // in every rank's error; % is the rank at fault
  bool check = false;          // dist.check=full
  std::chrono::seconds timeout = kTimeout, heartbeat = std::chrono::seconds(20);
};

const FaultCase kFaults[] = {
    {"delay", TransportFault::Kind::kDelay, {}, {}, ""},
    {"drop", TransportFault::Kind::kDrop, {}, Cause::kTimeout, "rank %"},
    {"corrupt",
     TransportFault::Kind::kCorrupt,
     {},
     Cause::kCorrupt,
     "from rank % to rank ",
     /*check=*/true},
    {"disconnect", TransportFault::Kind::kDisconnect, {}, Cause::kLostRank, "rank % is gone"},
    {"late",
     {},
     [](ProcessGroup& g, const CollectiveCase&, const std::atomic<int>& failed) {
       while (failed < kRanks - 1) std::this_thread::sleep_for(milliseconds(5));
       g.Barrier()->Wait();
     },
     Cause::kTimeout,
     "rank % did not take part within 4 s; rank % last called barrier #1"},
    {"throws",
     {},
     [](ProcessGroup&, const CollectiveCase&, const std::atomic<int>&) {
       throw InputError("shard 7 is truncated");
     },
     Cause::kAborted,
     "rank % gave up"},
    {"ends",
     {},
     [](ProcessGroup&, const CollectiveCase&, const std::atomic<int>&) {},
     Cause::kMismatch,
     "rank % ended while others continue: with less data?"},
    {"is killed",
     {},
     [](ProcessGroup& g, const CollectiveCase&, const std::atomic<int>& failed) {
       g.control()->Cut();
       while (failed < kRanks - 1) std::this_thread::sleep_for(milliseconds(5));
       throw InputError("it would be gone");
     },
     Cause::kLostRank,
     "rank % is gone: its process ended"},
    {"calls something else",
     {},
     [](ProcessGroup& g, const CollectiveCase&, const std::atomic<int>&) {
       const Tensor x = Filled(2, 1), y = Filled(2 * kRanks, 1);
       g.AllGather(x, y)->Wait();
     },
     Cause::kMismatch,
     "rank % all_gather #2 (f32[2])"},
    {"is stopped",
     {},
     [](ProcessGroup& g, const CollectiveCase&, const std::atomic<int>& failed) {
       const auto wait = [&failed] {
         while (failed < kRanks - 1) std::this_thread::sleep_for(milliseconds(5));
       };
       g.control()->Post(wait);
       wait();
       g.control()->traffic();  // returns once the loop goes on
       g.Barrier()->Wait();
     },
     Cause::kTimeout,
     "rank % is stalled: its process has shown no sign of life for 4 s",
     /*check=*/false,
     /*timeout=*/std::chrono::seconds(60),
     /*heartbeat=*/std::chrono::seconds(6)},
    {"another size",
     {},
     [](ProcessGroup& g, const CollectiveCase& c, const std::atomic<int>&) {
       c.run(g, kCount - 1000);
     },
     Cause::kMismatch,
     "rank"},
};

bool Applies(const FaultCase& fault, const CollectiveCase& collective) {
  return std::string(fault.name) != "another size" || std::string(collective.name) != "barrier";
}

struct Outcome {
  std::vector<std::string> errors = std::vector<std::string>(kRanks);
  std::vector<std::vector<int>> culprits = std::vector<std::vector<int>>(kRanks);
  std::vector<std::optional<Cause>> causes = std::vector<std::optional<Cause>>(kRanks);
  std::atomic<int> failed{0};
  std::atomic<bool> wrong_data{false};
  // Of the ranks outside of the group, which talk among themselves until the run fails.
  std::mutex mutex;
  std::vector<std::pair<std::string, std::optional<Cause>>> others;
  std::atomic<int> ended{0};  // of the group
};

// What a rank does: a barrier, the call, another barrier.
void RunRank(ProcessGroup& g, const FaultCase& fault, const CollectiveCase& collective,
             int at_fault, Outcome* outcome) {
  g.Barrier()->Wait();
  if (g.rank() == at_fault && fault.rank) {
    fault.rank(g, collective, outcome->failed);
    if (std::string(fault.name) == "ends") return;
  } else {
    const Data data = collective.run(g, kCount);
    for (const float x : data.got.ToVector<float>()) {
      if (x != static_cast<float>(data.expected)) outcome->wrong_data = true;
    }
  }
  g.Barrier()->Wait();
}

// What a rank outside of the group does: it talks in another group, until it hears of the fault, if
// there is one. The members may have ended before that.
void RunOther(ProcessGroup& g, const FaultCase& fault, Outcome* outcome) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  try {
    while (true) {
      const bool waits = fault.cause && std::chrono::steady_clock::now() < last;
      const Tensor over = Filled(1, outcome->ended == kRanks && !waits ? 1 : 0);
      g.AllReduce(over)->Wait();
      if (over.data<float>()[0] > 0) return;
      std::this_thread::sleep_for(milliseconds(2));  // all cases run at the same time
    }
  } catch (const CollectiveError& e) {
    const std::lock_guard<std::mutex> lock(outcome->mutex);
    outcome->others.emplace_back(e.what(), e.cause());
  }
}

void RunMember(End end, GroupOptions options, const FaultCase& fault,
               const CollectiveCase& collective, int rank, int at_fault, Outcome* outcome) {
  if (rank == at_fault && fault.transport) {
    // After the first barrier and, if there are messages with data, in one of those.
    const int runs_per_exchange = fault.check ? 2 : 1;
    const int exchanges_before = std::string(collective.name) == "barrier" ? 1 : 2;
    end.transport = MakeFaultyTransport(std::move(end.transport),
                                        {.kind = *fault.transport,
                                         .at_run = exchanges_before * runs_per_exchange + 1,
                                         .delay = milliseconds(300)});
  }
  const auto i = static_cast<size_t>(rank);
  try {
    const auto group = MakeHostGroup(std::move(end.transport), end.control, options);
    RunRank(*group, fault, collective, at_fault, outcome);
  } catch (const CollectiveError& e) {
    outcome->errors[i] = e.what();
    outcome->culprits[i] = e.culprits();
    outcome->causes[i] = e.cause();
    ++outcome->failed;
  } catch (const std::exception& e) {
    outcome->errors[i] = e.what();
    ++outcome->failed;
  }
  ++outcome->ended;
}

void RunCase(const Place& place, const FaultCase& fault, const CollectiveCase& collective,
             int at_fault, Outcome* outcome) {
  GroupOptions options;
  options.timeout = fault.timeout;
  options.check_every_call = fault.check;
  auto ends = MakeEnds(place.world,
                       {.loops = place.world, .heartbeat = fault.heartbeat, .fan_out = kFanOut});
  std::vector<int> others;
  for (int r = 0; r < place.world; ++r) {
    if (IndexOf(place.members, r) < 0) others.push_back(r);
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < place.world; ++r) {
    threads.emplace_back([&, r, options]() mutable {
      End end = std::move(ends[static_cast<size_t>(r)]);
      const int rank = IndexOf(place.members, r);
      options.name = rank < 0 ? "others" : place.group;
      if (!others.empty()) {
        end.transport = end.transport->Split(options.name, rank < 0 ? others : place.members);
      }
      if (rank >= 0) {
        return RunMember(std::move(end), options, fault, collective, rank, at_fault, outcome);
      }
      options.timeout = std::chrono::minutes(5);
      RunOther(*MakeHostGroup(std::move(end.transport), std::move(end.control), options), fault,
               outcome);
    });
  }
  for (std::thread& t : threads) t.join();
}

std::string Words(const FaultCase& fault, int rank) {
  std::string words = fault.words;
  for (size_t at; (at = words.find('%')) != std::string::npos;)
    words.replace(at, 1, std::to_string(rank));
  return words;
}

void ExpectDiagnosis(const Place& place, const FaultCase& fault, const CollectiveCase& collective,
                     int at_fault, const Outcome& outcome) {
  const int culprit = place.Member(at_fault);
  SCOPED_TRACE(StrCat(fault.name, " of rank ", culprit, " in ", collective.name));
  EXPECT_THAT(outcome.others, SizeIs(fault.cause ? place.world - kRanks : 0));
  for (const auto& [error, cause] : outcome.others) {
    EXPECT_EQ(cause, fault.cause) << error;
    EXPECT_THAT(error, AllOf(HasSubstr(", group 'others', all_reduce #"),
                             HasSubstr(Words(fault, culprit))));
  }
  EXPECT_FALSE(outcome.wrong_data);
  for (int r = 0; r < kRanks; ++r) {
    const auto i = static_cast<size_t>(r);
    // The rank that ends, throws or is killed has no error from the group.
    const std::string name = fault.name;
    const bool by_itself =
        r == at_fault && (name == "ends" || name == "throws" || name == "is killed");
    if (!fault.cause || by_itself) {
      EXPECT_EQ(outcome.causes[i], std::nullopt) << outcome.errors[i];
      continue;
    }
    EXPECT_EQ(outcome.causes[i], fault.cause) << outcome.errors[i];
    // Only the two peers compare an exchange, and neither can tell which is right.
    const bool of_two =
        fault.cause == Cause::kMismatch && std::string(collective.name) == "exchange";
    EXPECT_THAT(outcome.errors[i],
                AllOf(HasSubstr(StrCat("rank ", place.Member(r), ", group '", place.group, "', ")),
                      HasSubstr(Words(fault, culprit))));
    if (of_two) {
      EXPECT_THAT(outcome.culprits[i], testing::Contains(culprit)) << outcome.errors[i];
    } else {
      EXPECT_THAT(outcome.culprits[i], ElementsAre(culprit)) << outcome.errors[i];
    }
  }
}

class FaultMatrixTest : public testing::TestWithParam<FaultCase> {};

// A place, and the rank at fault in its group.
using Where = std::pair<const Place*, int>;

void ExpectMatrix(const FaultCase& fault, const std::vector<Where>& everywhere) {
  // All at the same time: most of the time they wait for a timeout.
  std::deque<Outcome> outcomes;
  std::vector<std::thread> threads;
  std::vector<std::function<void()>> expectations;
  for (const auto& [place, rank] : everywhere) {
    for (const CollectiveCase& collective : kCollectives) {
      if (!Applies(fault, collective)) continue;
      Outcome& outcome = outcomes.emplace_back();
      threads.emplace_back(
          [&, place, rank] { RunCase(*place, fault, collective, rank, &outcome); });
      expectations.emplace_back(
          [&, place, rank] { ExpectDiagnosis(*place, fault, collective, rank, outcome); });
    }
  }
  for (std::thread& t : threads) t.join();
  for (const auto& expect : expectations) expect();
  const auto another = static_cast<size_t>((everywhere.front().second + 1) % kRanks);
  const std::string& error = outcomes.front().errors[another];
  std::cout << fault.name << ": " << (error.empty() ? "all is well" : error) << "\n";
}

TEST_P(FaultMatrixTest, IsDiagnosedCorrectlyInEveryCollectiveOnEveryRank) {
  ExpectMatrix(GetParam(), {{&kAll, 0}, {&kAll, 1}, {&kAll, 2}});
}

// The other ranks hear why they are stopped. Each fault is on another rank.
TEST_P(FaultMatrixTest, IsDiagnosedCorrectlyInAGroupOfSomeRanks) {
  const auto* const fault = std::find_if(std::begin(kFaults), std::end(kFaults), [](const auto& f) {
    return std::string(f.name) == GetParam().name;
  });
  const int rank = static_cast<int>(fault - kFaults) % kRanks;
  ExpectMatrix(GetParam(), {{&kSome, rank}, {&kOthers, (rank + 1) % kRanks}});
}

INSTANTIATE_TEST_SUITE_P(Kinds, FaultMatrixTest, testing::ValuesIn(kFaults), [](const auto& info) {
  std::string name;
  for (const char c : std::string(info.param.name)) name += c == ' ' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace lockstep::dist::test
