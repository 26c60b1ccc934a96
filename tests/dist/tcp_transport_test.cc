// What the transport over TCP promises beyond dist/groups/transport.h: connections at first use,
// and nothing that grows. process_group_test, failure_test and fault_matrix_test use it too.
#include "dist/groups/tcp_transport.h"

#include <gmock/gmock-matchers.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "dist/control/socket.h"
#include "tests/dist/ranks.h"
#include "tests/message_of.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::dist {
namespace {

using namespace std::chrono_literals;
using lockstep::test::MessageOf;
using lockstep::test::ProcessStateOf;
using test::MakeEnds;
using testing::ElementsAre;
using testing::HasSubstr;
using Bytes = std::vector<unsigned char>;
using Cause = TransportError::Cause;
using Incoming = std::vector<Transport::Incoming>;
using Outgoing = std::vector<Transport::Outgoing>;

Transport::Deadline In(std::chrono::milliseconds time) { return AwakeClock::now() + time; }

// Runs f(rank) on a thread per rank.
void OnRanks(int size, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back([&f, r] { f(r); });
  for (std::thread& t : threads) t.join();
}

Bytes Message(int from, int to, int64_t bytes, int number) {
  Bytes message(static_cast<size_t>(bytes));
  for (size_t i = 0; i < message.size(); ++i) {
    message[i] = static_cast<unsigned char>(i * 7 + i / 251 +
                                            static_cast<size_t>(from * 31 + to * 17 + number));
  }
  return message;
}

// Every rank sends every other one message of each size.
void ExchangeAll(Transport& end, const std::vector<int64_t>& sizes) {
  std::map<std::pair<int, int>, Bytes> sent, received;  // by peer and number
  Outgoing outgoing;
  Incoming incoming;
  for (int n = 0; n < std::ssize(sizes); ++n) {
    const int64_t bytes = sizes[static_cast<size_t>(n)];
    for (const int p : end.members()) {
      if (p == end.rank()) continue;
      const Bytes& mine = sent[{p, n}] = Message(end.rank(), p, bytes, n);
      Bytes& theirs = received[{p, n}] = Bytes(static_cast<size_t>(bytes));
      outgoing.push_back({p, mine.data(), bytes});
      incoming.push_back({p, theirs.data(), bytes});
    }
  }
  end.Run(outgoing, incoming, In(60s));
  for (const auto& [key, bytes] : received) {
    const auto& [peer, n] = key;
    EXPECT_TRUE(bytes == Message(peer, end.rank(), std::ssize(bytes), n))
        << "from rank " << peer << ", message " << n << " of " << bytes.size() << " bytes";
  }
}

void Swap(Transport& end, int peer) {
  char mine = 'x', theirs = 0;
  end.Run(Outgoing{{peer, &mine, 1}}, Incoming{{peer, &theirs, 1}}, In(60s));
  EXPECT_EQ(theirs, 'x');
}

// The error that f throws; fails the test if there is none.
TransportError ErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const TransportError& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return {Cause::kCorrupt, {}, ""};
}

TEST(TcpTransport, MovesMessagesOfAllSizesInOrder) {
  const int64_t most = lockstep::test::kSanitized ? 3 << 20 : 64 << 20;
  for (const int ranks : {1, 2, 4}) {
    const auto ends = MakeEnds(ranks);
    const int64_t large = ranks == 2 ? most : 300'001;
    OnRanks(ranks, [&](int r) {
      Transport& end = *ends[static_cast<size_t>(r)].transport;
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{},
                                                {0},
                                                {1},
                                                {0, 7, 0, 4097, 1, 0},
                                                {large},
                                                {64},
                                                {3, large, 2}}) {
        ExchangeAll(end, sizes);
      }
    });
  }
}

TEST(TcpTransport, MovesMoreMessagesThanOneSystemCallDoes) {
  const auto ends = MakeEnds(2);
  OnRanks(2, [&](int r) {
    ExchangeAll(*ends[static_cast<size_t>(r)].transport, std::vector<int64_t>(3000, 5));
  });
}

// A rank may send what the other receives in several calls, and the other way round.
TEST(TcpTransport, MessagesAreNotBoundToCalls) {
  const auto ends = MakeEnds(2);
  const Bytes a = Message(0, 1, 200'000, 0), b = Message(0, 1, 100'000, 1);
  Bytes got_a(a.size()), got_b(b.size());
  OnRanks(2, [&](int r) {
    if (r == 0) {
      ends[0].transport->Run(Outgoing{{1, a.data(), std::ssize(a)}}, {}, In(60s));
      ends[0].transport->Run(Outgoing{{1, b.data(), std::ssize(b)}}, {}, In(60s));
    } else {
      ends[1].transport->Run(
          {}, Incoming{{0, got_a.data(), std::ssize(a)}, {0, got_b.data(), std::ssize(b)}},
          In(60s));
    }
  });
  EXPECT_TRUE(got_a == a && got_b == b);
}

TEST(TcpTransport, OnlyRanksThatTalkAreConnected) {
  const auto ends = MakeEnds(4);
  const int64_t before = ProcessStateOf().descriptors;
  const auto more = [&] { return ProcessStateOf().descriptors - before; };
  const auto other = ends[3].transport->Split("other", ends[3].transport->members());
  EXPECT_EQ(more(), 1);  // an eventfd
  OnRanks(2, [&](int r) { Swap(*ends[static_cast<size_t>(r)].transport, 1 - r); });
  EXPECT_EQ(more(), 1 + 2);
  OnRanks(2, [&](int r) { Swap(*ends[static_cast<size_t>(r)].transport, 1 - r); });
  EXPECT_EQ(more(), 1 + 2);
  OnRanks(2, [&](int r) { Swap(*ends[static_cast<size_t>(3 * r)].transport, 3 - 3 * r); });
  EXPECT_EQ(more(), 1 + 4);
  for (const auto& end : ends) end.transport->Close();
  EXPECT_EQ(more(), 1);
}

TEST(TcpTransport, CanBeInterruptedAndExtendedWhereverItWaits) {
  for (const bool connected : {true, false}) {
    for (const int waits : {0, 1}) {  // to be dialled, or for an answer
      const auto ends = MakeEnds(2);
      if (connected)
        OnRanks(2, [&](int r) { Swap(*ends[static_cast<size_t>(r)].transport, 1 - r); });
      Transport& end = *ends[static_cast<size_t>(waits)].transport;
      char byte;
      std::thread extends([&] {
        std::this_thread::sleep_for(100ms);
        end.Extend(In(60s));
        std::this_thread::sleep_for(400ms);
        end.Interrupt();
      });
      const auto begin = std::chrono::steady_clock::now();
      const auto wait = [&] { end.Run({}, Incoming{{1 - waits, &byte, 1}}, In(300ms)); };
      EXPECT_EQ(ErrorOf(wait).cause, Cause::kInterrupted);
      EXPECT_GE(std::chrono::steady_clock::now() - begin, 450ms);
      EXPECT_EQ(ErrorOf(wait).cause, Cause::kInterrupted);
      extends.join();
    }
  }
}

// Ranks 1 and 3 stay away, and rank 2 does not read what rank 0 sends.
TEST(TcpTransport, ATimeoutListsThePeersWhoseMessagesAreMissing) {
  const auto ends = MakeEnds(5);
  const Bytes large(64 << 20);
  char bytes[5] = {};
  std::thread two([&] { ends[2].transport->Run(Outgoing{{0, bytes, 1}}, {}, In(60s)); });
  std::thread four([&] { ends[4].transport->Run(Outgoing{{0, bytes, 1}}, {}, In(60s)); });
  two.join();
  four.join();
  const Outgoing outgoing = {{2, large.data(), std::ssize(large)}, {4, bytes, 1}};
  const Incoming incoming = {
      {1, &bytes[1], 1}, {2, &bytes[2], 1}, {3, &bytes[3], 1}, {4, &bytes[4], 1}};
  const auto error = ErrorOf([&] { ends[0].transport->Run(outgoing, incoming, In(500ms)); });
  EXPECT_EQ(error.cause, Cause::kTimeout);
  EXPECT_THAT(error.peers, ElementsAre(1, 2, 3));
}

TEST(TcpTransport, LostRanksAreListedAndTheOthersStillGetTheirMessages) {
  const auto ends = MakeEnds(5);
  OnRanks(5, [&](int r) { ExchangeAll(*ends[static_cast<size_t>(r)].transport, {10}); });
  ends[1].transport->Close();
  ends[3].transport->Close();
  const Bytes large = Message(0, 2, 6 << 20, 0);
  Bytes got(large.size());
  // Rank 4 has not sent anything, but is not lost.
  std::thread two([&] {
    ends[2].transport->Run({}, Incoming{{0, got.data(), std::ssize(got)}}, In(60s));
  });
  char bytes[5] = {};
  const Outgoing outgoing = {{1, bytes, 1}, {2, large.data(), std::ssize(large)}};
  const auto error = ErrorOf([&] {
    ends[0].transport->Run(outgoing, Incoming{{1, &bytes[1], 1}, {4, &bytes[4], 1}}, In(60s));
  });
  two.join();
  EXPECT_EQ(error.cause, Cause::kLostRank);
  EXPECT_THAT(error.peers, ElementsAre(1, 3));
  EXPECT_THAT(error.what(), HasSubstr("its connection to rank 1 ended: "));
  EXPECT_TRUE(got == large);
  // A rank that has closed its connections has lost all others.
  const auto own = ErrorOf([&] { ends[1].transport->Run(Outgoing{{4, bytes, 1}}, {}, In(60s)); });
  EXPECT_EQ(own.cause, Cause::kLostRank);
  EXPECT_THAT(own.peers, ElementsAre(0, 2, 3, 4));
}

TEST(TcpTransport, WithoutDescriptorsItSaysHowToGetMore) {
  const auto ends = MakeEnds(2);
  // The first time that it sees a type, UBSan needs descriptors (a pipe) to look at an object.
  EXPECT_THROW(throw NoDescriptorsError(""), ConnectionError);
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none = {3, before.rlim_max};  // stdin, stdout and stderr
  setrlimit(RLIMIT_NOFILE, &none);
  const std::string message = MessageOf<NoDescriptorsError>([&] { Swap(*ends[1].transport, 0); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(message, HasSubstr("ulimit -n 4096"));
}

// Ranks use two groups in opposite orders; each message arrives in its group.
TEST(TcpTransport, TransportsOfTheSameRanksDoNotMix) {
  const auto ends = MakeEnds(2);
  OnRanks(2, [&](int r) {
    Transport& first = *ends[static_cast<size_t>(r)].transport;
    const auto second = first.Split("second", first.members());
    char mine[2] = {'a', 'b'}, theirs[2] = {};
    Transport* const order[2] = {&first, second.get()};
    for (const int i : {r, 1 - r}) order[i]->Run(Outgoing{{1 - r, &mine[i], 1}}, {}, In(60s));
    for (const int i : {0, 1}) order[i]->Run({}, Incoming{{1 - r, &theirs[i], 1}}, In(60s));
    EXPECT_EQ(std::string(theirs, 2), "ab");
    EXPECT_THAT(MessageOf<ArgumentError>([&] { first.Split("second", first.members()); }),
                HasSubstr("there is a group 'second' already"));
  });
}

TEST(TcpTransport, ALongLifeLeavesNothingBehind) {
  const auto ends = MakeEnds(2);
  const auto live = [&](int runs, int duplicates) {
    OnRanks(2, [&](int r) {
      Transport& end = *ends[static_cast<size_t>(r)].transport;
      for (int i = 0; i < runs; ++i) Swap(end, 1 - r);
      for (int i = 0; i < duplicates; ++i) {
        const auto other = end.Split(StrCat("group ", i), end.members());
        if (i % 2 == 0) Swap(*other, 1 - r);
        Swap(end, 1 - r);  // so that no name is used again too early
      }
    });
  };
  live(10, 2);
  const auto early = ProcessStateOf();
  live(lockstep::test::kSanitized ? 5'000 : 100'000, 200);
  const auto late = ProcessStateOf();
  EXPECT_EQ(late.descriptors, early.descriptors);
  EXPECT_EQ(late.threads, early.threads);
}

}  // namespace
}  // namespace lockstep::dist
