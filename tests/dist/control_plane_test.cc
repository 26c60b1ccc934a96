// The control plane: its tree, its messages, and what strangers can do to it.
#include "dist/control/control_plane.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "dist/control/fold.h"
#include "dist/control/handshake.h"
#include "dist/control/local_planes.h"
#include "tests/dist/crowd.h"
#include "tests/message_of.h"
#include "tests/process_state.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Crowd;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Socket::Deadline Soon() { return std::chrono::steady_clock::now() + seconds(60); }

TEST(RankTree, EveryRankIsBelowItsParentInARunOfRanks) {
  for (const int fan_out : {2, 3, 16}) {
    for (const int size : {1, 2, 15, 16, 17, 18, 100, 257, 300}) {
      const RankTree tree(size, fan_out);
      EXPECT_EQ(tree.Parent(0), -1);
      int edges = 0;
      for (int r = 0; r < size; ++r) {
        std::set<int> below = {r};
        int end = r + 1;
        for (const int child : tree.Children(r)) {
          ++edges;
          EXPECT_EQ(tree.Parent(child), r);
          EXPECT_EQ(child, end);  // the next subtree follows the one before
          end = tree.End(child);
        }
        EXPECT_EQ(tree.End(r), end);
      }
      EXPECT_EQ(edges, size - 1);
      // Following Next leads from every rank to every other one, at first up and then down.
      int digits = 1;
      for (int64_t n = fan_out; n < size; n *= fan_out) ++digits;
      for (int from = 0; from < size; ++from) {
        for (int to = 0; to < size; to += 7) {
          int steps = 0;
          for (int at = from; at != to; at = tree.Next(at, to)) ASSERT_LE(++steps, 2 * digits);
        }
      }
    }
  }
  EXPECT_THAT(RankTree(40).Children(0).size(), 15 + 2);
  EXPECT_THROW(RankTree(0), ArgumentError);
}

TEST(FrameTest, IsReadAsItWasWritten) {
  std::string bytes;
  const Frame a{Frame::Kind::kMessage, 3, 5, 77, 8, "body"}, b{Frame::Kind::kBeat, 1, 0, 0, 0, ""};
  Encode(a, &bytes);
  Encode(b, &bytes);
  Frame read;
  const size_t first = *Decode(bytes, &read);
  EXPECT_EQ(read, a);
  EXPECT_EQ(*Decode(bytes.substr(first), &read), kFrameHeader);
  EXPECT_EQ(read, b);
  for (size_t n = 0; n < first; ++n) EXPECT_EQ(*Decode(bytes.substr(0, n), &read), 0u) << n;
  bytes[4] = 99;  // an unknown kind
  EXPECT_EQ(Decode(bytes, &read), std::nullopt);
}

// A stranger's side of a connection.
void Await(const Socket& socket, short events) {
  pollfd fd = {socket.fd(), events, 0};
  if (poll(&fd, 1, PollTimeout(Soon())) != 1) throw ConnectionError("timed out");
}
Socket NextConnection(const Socket& listener) {
  Await(listener, POLLIN);
  return Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
}
void SendAll(const Socket& socket, const void* data, size_t bytes) {
  for (const auto* at = static_cast<const char*>(data); bytes > 0;) {
    Await(socket, POLLOUT);
    const ssize_t n = send(socket.fd(), at, bytes, MSG_NOSIGNAL);
    if (n < 0) throw ConnectionError("the connection was closed");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}
void ReceiveAll(const Socket& socket, void* data, size_t bytes) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    Await(socket, POLLIN);
    const ssize_t n = recv(socket.fd(), at, bytes, 0);
    if (n <= 0) throw ConnectionError("the connection was closed");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

std::function<bool()> Until(std::chrono::steady_clock::time_point deadline) {
  return [deadline] { return std::chrono::steady_clock::now() < deadline; };
}
std::vector<int> All(const Crowd& crowd) { return AllRanks(crowd.size()); }

TEST(ControlPlane, MessagesReachEveryRankInOrder) {
  constexpr int kRanks = 40, kMessages = 20;
  Crowd crowd(kRanks);
  ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
  std::mutex mutex;
  std::map<int, std::map<int, std::vector<uint64_t>>> got;  // by receiver and sender
  std::atomic<int> left = kRanks * kRanks * kMessages;
  const auto subscribe = [&](int r) {
    crowd.plane(r).Subscribe(1, [&, r](int from, uint64_t number, const std::string& body) {
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_EQ(body, StrCat(from, " to ", r));
      got[r][from].push_back(number);
      --left;
    });
  };
  for (int r = 0; r < kRanks / 2; ++r) subscribe(r);
  for (uint64_t i = 0; i < kMessages; ++i) {
    for (int from = 0; from < kRanks; ++from) {
      for (int to = 0; to < kRanks; ++to) {
        crowd.plane(from).Send(to, 1, i, StrCat(from, " to ", to));
      }
    }
  }
  // The others subscribe when messages may already have arrived.
  for (int r = kRanks / 2; r < kRanks; ++r) subscribe(r);
  while (left > 0) std::this_thread::sleep_for(milliseconds(1));
  std::vector<uint64_t> in_order(kMessages);
  std::iota(in_order.begin(), in_order.end(), 0);
  for (const auto& [to, senders] : got) {
    for (const auto& [from, numbers] : senders) EXPECT_EQ(numbers, in_order);
  }
}

TEST(ControlPlane, QuestionsAreAnsweredByThoseWhoCan) {
  Crowd crowd(20);
  ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
  for (const int r : {0, 3, 17}) {
    crowd.plane(r).Answer(5, [r](const std::string& question) { return StrCat(question, r); });
  }
  for (const int asker : {0, 17, 19}) {
    EXPECT_THAT(crowd.plane(asker).Ask(All(crowd), 5, "rank ", Soon()),
                ElementsAre(testing::Pair(0, "rank 0"), testing::Pair(3, "rank 3"),
                            testing::Pair(17, "rank 17")));
  }
}

TEST(ControlPlane, AFoldCombinesInTheOrderOfRanksOverAnyGroup) {
  Crowd crowd(40);
  ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
  for (const std::vector<int>& members :
       {All(crowd), std::vector<int>{7}, std::vector<int>{0, 39}, std::vector<int>{3, 17, 18, 35},
        std::vector<int>{1, 5, 9, 13, 17, 21, 25, 29, 33, 37}}) {
    std::string expected;
    for (const int r : members) expected += StrCat(r, ";");
    std::vector<std::unique_ptr<Fold>> folds;
    for (const int r : members) {
      folds.push_back(std::make_unique<Fold>(
          crowd.plane(r), StrCat("group of ", members.size()), members,
          [](const std::string& a, const std::string& b) { return a + b; }, /*fan_out=*/3));
    }
    for (int round = 0; round < 3; ++round) {
      std::vector<std::thread> threads;
      for (size_t i = 0; i < members.size(); ++i) {
        threads.emplace_back(
            [&, i] { EXPECT_EQ(folds[i]->Run(StrCat(members[i], ";"), Until(Soon())), expected); });
      }
      for (std::thread& t : threads) t.join();
    }
    // One rank stays away.
    if (members.size() > 1) {
      EXPECT_EQ(folds[0]->Run("", Until(std::chrono::steady_clock::now() + milliseconds(50))),
                std::nullopt);
    }
  }
}

TEST(ControlPlane, TheEndOfAnyRankReachesAllOthers) {
  for (const int victim : {0, 16, 17, 39}) {
    Crowd crowd(40);
    ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
    crowd.Kill(victim);
    ASSERT_TRUE(crowd.WaitForFailures(39, seconds(60)));
    for (int r = 0; r < 40; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(crowd.plane(r).failure()->reason,
                StrCat("rank ", victim, " is gone: its process ended"));
    }
  }
}

TEST(ControlPlane, RanksThatLeaveAreNoFailure) {
  auto planes = MakeLocalPlanes(20);
  for (const auto& plane : planes) plane->WaitUntilOpen();
  // Each on its own thread, in any order: a rank waits for those below it.
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (auto& plane : planes) plane->AddListener([&](const Failure&) { ++failures; });
  for (auto& plane : planes)
    threads.emplace_back([mine = std::move(plane)]() mutable { mine.reset(); });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures, 0);
}

TEST(ControlPlane, ARankThatIsSilentIsNamed) {
  // Rank 2's loop is busy, as if its process was stopped.
  auto planes = MakeLocalPlanes(3, {.loops = 3, .heartbeat = milliseconds(600)});
  for (const auto& plane : planes) plane->WaitUntilOpen();
  std::atomic<bool> told{false};
  planes[0]->AddListener([&](const Failure&) { told = true; });
  planes[2]->Post([&] {
    while (!told) std::this_thread::sleep_for(milliseconds(1));
  });
  while (!told) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_THAT(planes[0]->failure()->reason,
              AllOf(HasSubstr("rank 2 is stalled: its process has shown no sign of life for 0.4 s"),
                    HasSubstr("with a heartbeat limit of 0.6 s")));
  while (!planes.empty()) planes.pop_back();
}

TEST(ControlPlane, TheHeartbeatIsChecked) {
  for (const int heartbeat : {-1, 1, 99}) {
    EXPECT_THAT(MessageOf([&] { MakeLocalPlanes(1, {.heartbeat = milliseconds(heartbeat)}); }),
                HasSubstr(StrCat("the heartbeat must be 0 (off) or at least 100 ms, got ",
                                 heartbeat, " ms")));
  }
}

// ---- Strangers ----

// Rank 0 of two, which waits for rank 1.
class Waiting {
 public:
  explicit Waiting(milliseconds timeout = seconds(60)) {
    Socket listener = Listen("127.0.0.1", 0);
    port_ = PortOf(listener);
    plane_ = Make(0, std::move(listener), "secret", timeout);
    plane_->traffic();  // it listens now
  }

  std::shared_ptr<ControlPlane> Make(int rank, Socket listener, const std::string& secret,
                                     milliseconds timeout = seconds(60)) {
    ControlPlane::Options o;
    o.rank = rank;
    o.claim = Claim::Of(2);
    o.claim.address = "127.0.0.1";
    o.claim.port = PortOf(listener);
    o.listeners.push_back(std::move(listener));
    o.timeout = timeout;
    o.heartbeat = milliseconds(0);
    o.root = [port = port_, secret] { return RootAddress{"127.0.0.1", port, secret}; };
    return std::make_shared<ControlPlane>(std::make_shared<EventLoop>(), std::move(o));
  }

  int port() const { return port_; }
  // The other rank comes, and all is well.
  void Meet() {
    auto other = Make(1, Listen("127.0.0.1", 0), "secret");
    plane_->WaitUntilOpen();
    other->WaitUntilOpen();
    other.reset();
  }

 private:
  int port_;
  std::shared_ptr<ControlPlane> plane_;
};

bool IsClosed(const Socket& socket) {
  try {
    char bytes[256];
    while (true) ReceiveAll(socket, bytes, 1);
  } catch (const ConnectionError& e) {
    return std::string(e.what()).find("timed out") == std::string::npos;
  }
}

TEST(Strangers, WithoutTheSecretAreTurnedAway) {
  Waiting root;
  const auto stranger = root.Make(1, Listen("127.0.0.1", 0), "guess");
  EXPECT_THAT(MessageOf<ConnectionError>([&] { stranger->WaitUntilOpen(); }),
              AllOf(HasSubstr(StrCat("rank 0 at 127.0.0.1:", root.port())),
                    HasSubstr("is LOCKSTEP_SECRET the same on all ranks?")));
  root.Meet();
}

TEST(Strangers, ThatAreAnotherProgramAreNotTakenForRank0) {
  Waiting root;
  const Socket server = Listen("127.0.0.1", 0);
  ControlPlane::Options o;
  o.rank = 1;
  o.claim = Claim::Of(2);
  o.root = [&] { return RootAddress{"127.0.0.1", PortOf(server), "secret"}; };
  ControlPlane plane(std::make_shared<EventLoop>(), std::move(o));
  const Socket client = NextConnection(server);
  const std::string ssh = "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3, and more of the kind .......";
  SendAll(client, ssh.data(), ssh.size());
  const std::string more(64, '.');
  SendAll(client, more.data(), more.size());
  EXPECT_THAT(MessageOf<ConnectionError>([&] { plane.WaitUntilOpen(); }),
              HasSubstr("is not Lockstep's"));
  root.Meet();
}

// What they send before they have proved anything is read no further than a proof is long.
TEST(Strangers, ThatSendAnythingAreCutOff) {
  Waiting root;
  std::minstd_rand random(1);
  for (const size_t bytes : {72u, 100u, 5000u}) {
    const Socket stranger = BeginConnect("127.0.0.1", root.port());
    std::string noise(bytes, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    SendAll(stranger, noise.data(), noise.size());
    EXPECT_TRUE(IsClosed(stranger)) << bytes;
  }
  root.Meet();
}

// Those that know the secret, but speak another protocol, are cut off too.
TEST(Strangers, ThatBreakTheProtocolAreCutOff) {
  Waiting root;
  Frame join{Frame::Kind::kJoin, 1, 0, 0, 0, "no claim"};
  Frame beat;
  Frame attach{Frame::Kind::kAttach, 77, 0, 0, 0, "elsewhere"};
  Frame data{Frame::Kind::kData, 1, 0, 0, 0, ""};
  std::vector<std::string> messages(4);
  Encode(join, &messages[0]);
  Encode(beat, &messages[1]);
  Encode(attach, &messages[2]);
  Encode(data, &messages[3]);
  messages.push_back(std::string(1000, '\xff'));
  for (const std::string& message : messages) {
    const Socket client = BeginConnect("127.0.0.1", root.port());
    handshake::Hello hello;
    ReceiveAll(client, &hello, sizeof(hello));
    handshake::Proof proof;
    proof.nonce = handshake::RandomNonce();
    proof.mac = handshake::MacOf("secret", "client", hello.nonce, proof.nonce);
    SendAll(client, &proof, sizeof(proof));
    handshake::Mac mac;
    ReceiveAll(client, mac.data(), mac.size());
    SendAll(client, message.data(), message.size());
    EXPECT_TRUE(IsClosed(client));
  }
  root.Meet();
}

// Connections that say nothing make room for others: the oldest go.
TEST(Strangers, ThatSayNothingHoldNoPlace) {
  Waiting root;
  std::vector<Socket> silent;
  const auto before = lockstep::test::ProcessStateOf().descriptors;
  for (int i = 0; i < 300; ++i) silent.push_back(BeginConnect("127.0.0.1", root.port()));
  root.Meet();
  EXPECT_TRUE(IsClosed(silent.front()));
  silent.clear();
  const auto deadline = Soon();
  while (lockstep::test::ProcessStateOf().descriptors > before &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_LE(lockstep::test::ProcessStateOf().descriptors, before);
}

}  // namespace
}  // namespace lockstep::dist
