// Ranks that meet, whoever does not come, dies or is no rank; and the connections that they make
// for their groups' data.
#include <gmock/gmock-matchers.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "dist/control/control_plane.h"
#include "dist/control/handshake.h"
#include "tests/dist/ranks.h"
#include "tests/message_of.h"
#include "tests/process_state.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Soon;
using testing::AllOf;
using testing::HasSubstr;

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

// Rank 0, which waits for the others. `port`: that the claim names; 0: its own.
class Waiting {
 public:
  explicit Waiting(int size = 2, int fan_out = RankTree::kFanOut, int port = 0)
      : size_(size), fan_out_(fan_out) {
    Socket listener = Listen("127.0.0.1", 0);
    port_ = PortOf(listener);
    auto o = OptionsOf(0, std::move(listener));
    if (port != 0) o.claim.port = port;
    plane_ = Make(std::move(o));
    plane_->traffic();  // it listens now
  }

  ControlPlane::Options OptionsOf(int rank, Socket listener = Listen("127.0.0.1", 0),
                                  const std::string& secret = "secret") {
    ControlPlane::Options o;
    o.rank = rank;
    o.claim = Claim::Of(size_);
    o.claim.address = "127.0.0.1";
    o.claim.port = PortOf(listener);
    o.listeners.push_back(std::move(listener));
    o.timeout = seconds(60);
    o.heartbeat = milliseconds(0);
    o.root = [port = port_, secret] { return RootAddress{"127.0.0.1", port, secret}; };
    o.fan_out = fan_out_;
    return o;
  }
  static std::shared_ptr<ControlPlane> Make(ControlPlane::Options o) {
    return std::make_shared<ControlPlane>(std::make_shared<EventLoop>(), std::move(o));
  }

  int port() const { return port_; }
  ControlPlane& plane() { return *plane_; }
  // The other rank comes, and all is well.
  void Meet() {
    auto other = Make(OptionsOf(1));
    plane_->WaitUntilOpen();
    other->WaitUntilOpen();
    other.reset();
  }

 private:
  const int size_, fan_out_;
  int port_;
  std::shared_ptr<ControlPlane> plane_;
};

// The dialler's side of the handshake.
Socket Greet(int port) {
  Socket client = BeginConnect("127.0.0.1", port);
  handshake::Hello hello;
  ReceiveAll(client, &hello, sizeof(hello));
  handshake::Proof proof;
  proof.nonce = handshake::RandomNonce();
  proof.mac = handshake::MacOf("secret", "client", PeerOf(client), hello.nonce, proof.nonce);
  SendAll(client, &proof, sizeof(proof));
  handshake::Mac mac;
  ReceiveAll(client, mac.data(), mac.size());
  return client;
}

void SendFrame(const Socket& socket, const Frame& frame) {
  std::string bytes;
  Encode(frame, &bytes);
  SendAll(socket, bytes.data(), bytes.size());
}

// Joins as a rank that others reach at that port.
Socket Join(Waiting& root, int rank, int size, int port) {
  Socket socket = Greet(root.port());
  Claim claim = Claim::Of(size);
  claim.address = "127.0.0.1";
  claim.port = port;
  SendFrame(socket, {Frame::Kind::kJoin, rank, 0, 0, 0, claim.ToText()});
  return socket;
}

// The reason why the rank has failed; waits for it.
std::string FailureOf(const ControlPlane& plane) {
  const auto deadline = Soon() - seconds(30);
  while (!plane.failure() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return plane.failure() ? plane.failure()->reason : "none";
}

// 0 -+- 1
//    +- 2 --- 3
TEST(Meeting, ARankThatDiesBeforeItIsAttachedIsNamed) {
  Waiting root(4, /*fan_out=*/2);
  const auto one = root.Make(root.OptionsOf(1)), two = root.Make(root.OptionsOf(2));
  {
    const Socket three = Join(root, 3, 4, /*port=*/1);
    Frame welcome;
    std::string bytes;
    do {
      char byte;
      ReceiveAll(three, &byte, 1);
      bytes += byte;
    } while (*Decode(bytes, &welcome) == 0);
    EXPECT_EQ(welcome.kind, Frame::Kind::kWelcome);
  }
  for (const ControlPlane* plane : {&root.plane(), one.get(), two.get()}) {
    EXPECT_EQ(FailureOf(*plane), "rank 3 is gone: its process ended");
  }
}

// 0 -+- 1
//    +- 2 --- 3
//    +- 4 -+- 5       Rank 4 has joined, but does not answer those below it; rank 7, which is
//          +- 6 --- 7 attached to rank 6, dies.
TEST(Meeting, AFailureIsHeardFromRanksThatHaveNotReachedTheirParents) {
  Waiting root(8, /*fan_out=*/2);
  std::map<int, std::shared_ptr<ControlPlane>> planes;
  for (const int r : {1, 2, 3, 5, 6, 7}) planes[r] = root.Make(root.OptionsOf(r));
  const Socket silent = Listen("127.0.0.1", 0);
  const Socket four = Join(root, 4, 8, PortOf(silent));
  const Socket five = NextConnection(silent), six = NextConnection(silent);  // they dial
  std::this_thread::sleep_for(milliseconds(300));
  planes[7]->Cut();
  EXPECT_EQ(FailureOf(root.plane()), "rank 7 is gone: its process ended");
  for (const int r : {1, 2, 3, 5, 6}) {
    EXPECT_EQ(FailureOf(*planes[r]), "rank 7 is gone: its process ended") << r;
  }
}

// What the last attempt to join came to is no longer true once it has been joined.
TEST(Meeting, ARankThatHasJoinedSaysForWhatItWaits) {
  Waiting root(3);
  auto o = root.OptionsOf(1);
  o.timeout = milliseconds(500);
  const int closed = PortOf(Listen("127.0.0.1", 0));
  o.root = [first = true, closed, port = root.port()]() mutable {
    return RootAddress{"127.0.0.1", std::exchange(first, false) ? closed : port, "secret"};
  };
  const auto plane = root.Make(std::move(o));
  EXPECT_EQ(MessageOf<ConnectionError>([&] { plane->WaitUntilOpen(); }),
            StrCat("rank 0 at 127.0.0.1:", root.port(),
                   " was joined, but has not said that all ranks have come"));
}

TEST(Meeting, AClaimThatFitsNoMessageEndsOnlyTheConnection) {
  Waiting root;
  auto o = root.OptionsOf(1);
  o.timeout = milliseconds(500);
  o.claim.host = std::string(3 << 20, 'x');
  const auto plane = root.Make(std::move(o));
  EXPECT_THAT(MessageOf<ConnectionError>([&] { plane->WaitUntilOpen(); }),
              HasSubstr("cannot be joined: a message to it is too long"));
  root.Meet();
}

// Two ranks, of which the first says that it listens where a stranger does.
struct DataDialler {
  const Socket server = Listen("127.0.0.1", 0);
  Waiting root{2, RankTree::kFanOut, PortOf(server)};
  std::shared_ptr<ControlPlane> plane = root.Make(root.OptionsOf(1));
  std::promise<std::exception_ptr> error;

  DataDialler() {
    root.plane().WaitUntilOpen();
    plane->WaitUntilOpen();
    plane->OpenData(7, [this](int, Socket, std::exception_ptr e) { error.set_value(e); });
    plane->DialData(7, 0);
  }
  // The first rank is to blame, not this one.
  std::string Blames() {
    return MessageOf<ConnectionError>([&] {
      try {
        std::rethrow_exception(error.get_future().get());
      } catch (const NoDescriptorsError&) {
        throw Error("it blames this process");
      }
    });
  }
};

TEST(DataConnections, AnotherProgramIsNotTakenForTheRank) {
  DataDialler dialler;
  const Socket client = NextConnection(dialler.server);
  const std::string other(100, 'x');
  SendAll(client, other.data(), other.size());
  EXPECT_THAT(dialler.Blames(), HasSubstr("is not Lockstep's"));
}

TEST(DataConnections, ARankWithoutDescriptorsIsDialledLessAndLessOften) {
  DataDialler dialler;
  const auto begin = std::chrono::steady_clock::now();
  handshake::Hello no_room;
  no_room.magic = handshake::kNoRoomMagic;
  no_room.limit = 64;
  for (int i = 0; i < 24; ++i) {
    const Socket client = NextConnection(dialler.server);
    SendAll(client, &no_room, sizeof(no_room));
  }
  EXPECT_THAT(dialler.Blames(), AllOf(HasSubstr("its process has no file descriptor left"),
                                      HasSubstr("a process may have 64 descriptors open")));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, seconds(2));
}

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
  const auto stranger = root.Make(root.OptionsOf(1, Listen("127.0.0.1", 0), "guess"));
  EXPECT_THAT(MessageOf<ConnectionError>([&] { stranger->WaitUntilOpen(); }),
              AllOf(HasSubstr(StrCat("rank 0 at 127.0.0.1:", root.port())),
                    HasSubstr("is LOCKSTEP_SECRET the same on all ranks?")));
  root.Meet();
}

// One that listens where a rank looks for rank 0, and passes on what the two say to each other.
TEST(Strangers, CannotStandBetweenRanks) {
  Waiting root;
  const Socket server = Listen("127.0.0.1", 0);
  auto o = root.OptionsOf(1);
  o.root = [&] { return RootAddress{"127.0.0.1", PortOf(server), "secret"}; };
  const auto plane = root.Make(std::move(o));
  const Socket client = NextConnection(server), relayed = BeginConnect("127.0.0.1", root.port());
  std::atomic<bool> passed_proof{false};
  const auto pass_on = [&](const Socket& from, const Socket& to, bool is_client) {
    try {
      char bytes[4096];
      for (ssize_t n; Await(from, POLLIN), (n = recv(from.fd(), bytes, sizeof(bytes), 0)) > 0;) {
        SendAll(to, bytes, static_cast<size_t>(n));
        passed_proof = passed_proof || is_client;
      }
    } catch (const ConnectionError&) {
    }
    shutdown(to.fd(), SHUT_WR);
  };
  std::thread up([&] { pass_on(client, relayed, true); });
  pass_on(relayed, client, false);
  up.join();
  EXPECT_TRUE(passed_proof);
  EXPECT_THAT(MessageOf<ConnectionError>([&] { plane->WaitUntilOpen(); }),
              AllOf(HasSubstr("it refuses this rank"), HasSubstr("another program")));
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
    const Socket client = Greet(root.port());
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

// Of `strangers` that say nothing, how many are turned away at once, and not for being slow.
int64_t TurnedAway(const Waiting& root, int strangers, int64_t expected) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(8);
  std::vector<Socket> silent;
  for (int i = 0; i < strangers; ++i) silent.push_back(BeginConnect("127.0.0.1", root.port()));
  int64_t ended = 0;
  do {
    std::this_thread::sleep_for(milliseconds(5));
    ended = std::count_if(silent.begin(), silent.end(),
                          [](const Socket& socket) { return socket.HasEnded(); });
  } while (ended < expected && std::chrono::steady_clock::now() < deadline);
  return ended;
}

// All ranks listen for as long as the run lasts. Once they have met, nobody else is expected.
TEST(Strangers, HoldFewDescriptorsOfARun) {
  constexpr int kRanks = 100;
  Waiting root(kRanks);
  const auto loop = std::make_shared<EventLoop>();
  std::vector<std::shared_ptr<ControlPlane>> planes;
  for (int r = 1; r < kRanks; ++r) {
    planes.push_back(std::make_shared<ControlPlane>(loop, root.OptionsOf(r)));
  }
  for (const auto& plane : planes) plane->WaitUntilOpen();
  EXPECT_GE(TurnedAway(root, 200, 200 - 128), 200 - 128);
  while (!planes.empty()) planes.pop_back();
}

TEST(Strangers, LeaveMostDescriptorsToTheProcess) {
  Waiting root;
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlimit lower = limit;
  lower.rlim_cur = 240;
  setrlimit(RLIMIT_NOFILE, &lower);
  EXPECT_GE(TurnedAway(root, 100, 100 - 60), 100 - 60);
  setrlimit(RLIMIT_NOFILE, &limit);
  root.Meet();
}

}  // namespace
}  // namespace lockstep::dist
