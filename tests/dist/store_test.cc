// What every store promises, and what is specific to the TCP and file stores.
#include "dist/control/store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "dist/control/file_store.h"
#include "dist/control/in_process_store.h"
#include "dist/control/socket.h"
#include "dist/control/tcp_store.h"
#include "dist/control/tcp_store_protocol.h"
#include "tests/message_of.h"
#include "tests/process_state.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using lockstep::test::ProcessStateOf;
using lockstep::test::ResidentBytes;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

std::string FreshFolder() {
  static int counter = 0;
  return StrCat(testing::TempDir(), "store_", getpid(), "_", ++counter);
}

Socket::Deadline Soon() { return std::chrono::steady_clock::now() + seconds(60); }

// A client that speaks the protocol by hand.
Socket ProvenClient(const TcpStoreServer& server) {
  Socket socket = Connect("127.0.0.1", server.address().port, Soon());
  tcp_store::Hello hello;
  socket.ReceiveAll(&hello, sizeof(hello), Soon());
  tcp_store::Proof proof;
  proof.mac = tcp_store::MacOf("", "client", hello.nonce, proof.nonce);
  socket.SendAll(&proof, sizeof(proof), Soon());
  tcp_store::Mac mac;
  socket.ReceiveAll(mac.data(), mac.size(), Soon());
  return socket;
}

class StoreTest : public testing::TestWithParam<std::string> {
 protected:
  StoreTest() {
    if (GetParam() == "InProcess") {
      store_ = MakeInProcessStore();
    } else if (GetParam() == "File") {
      store_ = OpenFileStore(FreshFolder(), 0, seconds(1));
    } else {
      server_ = std::make_unique<TcpStoreServer>(TcpStoreAddress{"127.0.0.1", 0, "secret"});
      store_ = ConnectTcpStore(server_->address(), seconds(20));
    }
  }
  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, testing::Values("InProcess", "File", "Tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(StoreTest, KeepsWhatIsSet) {
  EXPECT_EQ(store_->Get("key", milliseconds(0)), std::nullopt);
  store_->Set("key", "one");
  EXPECT_EQ(store_->Get("key", milliseconds(0)), "one");
  store_->Set("key", "two");
  EXPECT_EQ(store_->Clone()->Get("key", milliseconds(0)), "two");
  store_->Set("empty", "");
  EXPECT_EQ(store_->Get("empty", milliseconds(0)), "");
  const std::string binary("\0\n\xff../x", 8);
  store_->Set("../" + binary, binary);
  EXPECT_EQ(store_->Get("../" + binary, milliseconds(0)), binary);
}

TEST_P(StoreTest, OnlyOneIsFirst) {
  std::vector<std::thread> threads;
  std::vector<std::string> seen(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { seen[i] = store_->Clone()->SetIfAbsent("first", StrCat(i)); });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_THAT(seen, testing::Each(seen[0]));
  EXPECT_EQ(store_->Get("first", milliseconds(0)), seen[0]);
}

TEST_P(StoreTest, AddsAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto store = store_->Clone();
      for (int n = 0; n < 25; ++n) store->Add("sum", 3);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(store_->Add("sum", -300), 0);
  EXPECT_EQ(store_->Add("sum", -1), -1);
}

TEST_P(StoreTest, WaitsForKeys) {
  EXPECT_EQ(store_->Get("late", milliseconds(30)), std::nullopt);
  std::thread setter([store = std::shared_ptr<Store>(store_->Clone())] {
    std::this_thread::sleep_for(milliseconds(50));
    store->Set("late", "here");
  });
  EXPECT_EQ(store_->Get("late", seconds(60)), "here");
  setter.join();
}

TEST_P(StoreTest, CanBeInterrupted) {
  const auto other = store_->Clone();
  std::thread interrupter([&] {
    std::this_thread::sleep_for(milliseconds(30));
    other->Interrupt();
  });
  EXPECT_THAT(MessageOf<StoreError>([&] { other->Get("never", seconds(600)); }),
              HasSubstr("interrupted"));
  interrupter.join();
  EXPECT_THROW(other->Set("key", "value"), StoreError);
  store_->Set("key", "value");
}

TEST_P(StoreTest, HasBounds) {
  EXPECT_THAT(MessageOf([&] { store_->Set("", "x"); }), HasSubstr("1 to 1024 bytes, got 0"));
  EXPECT_THAT(MessageOf([&] { store_->Get(std::string(1025, 'k'), seconds(1)); }),
              HasSubstr("got 1025"));
  EXPECT_THAT(MessageOf([&] { store_->Set("big", std::string(Store::kMaxValue + 1, 'v')); }),
              HasSubstr("'big' has 1048577 bytes"));
  const std::string largest(Store::kMaxValue, 'v');
  store_->Set(std::string(1024, 'k'), largest);
  EXPECT_EQ(store_->Get(std::string(1024, 'k'), seconds(0)), largest);
}

TEST_P(StoreTest, ForgetsWhatIsDeleted) {
  const int64_t before = store_->Bytes();
  store_->Set("key", std::string(1000, 'v'));
  store_->Add("sum", 3);
  EXPECT_GE(store_->Bytes(), before + 1000);
  store_->Delete("key");
  store_->Delete("sum");
  store_->Delete("never there");
  EXPECT_EQ(store_->Bytes(), before);
  EXPECT_EQ(store_->Get("key", milliseconds(0)), std::nullopt);
  EXPECT_EQ(store_->Add("sum", 1), 1);
  EXPECT_EQ(store_->SetIfAbsent("key", "new"), "new");
  PrefixStore prefixed(store_->Clone(), "a/");
  prefixed.Set("key", "of a");
  prefixed.Delete("key");
  EXPECT_EQ(store_->Get("a/key", milliseconds(0)), std::nullopt);
  EXPECT_EQ(store_->Get("key", milliseconds(0)), "new");
}

TEST_P(StoreTest, PrefixesKeepApart) {
  PrefixStore a(store_->Clone(), "a/"), b(store_->Clone(), "b/");
  a.Set("key", "of a");
  EXPECT_EQ(b.Get("key", milliseconds(0)), std::nullopt);
  EXPECT_EQ(a.Clone()->Get("key", milliseconds(0)), "of a");
  EXPECT_EQ(store_->Get("a/key", milliseconds(0)), "of a");
}

TEST(TcpStoreTest, ExecutesTheWillOfAClientThatIsGone) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server.address(), seconds(20));
  auto gone = ConnectTcpStore(server.address(), seconds(20));
  gone->SetWill("will", "of one that is gone");
  EXPECT_EQ(store->Get("will", milliseconds(20)), std::nullopt);
  gone.reset();
  EXPECT_EQ(store->Get("will", seconds(60)), "of one that is gone");
  auto leaves = ConnectTcpStore(server.address(), seconds(20));
  leaves->SetWill("other will", "x");
  leaves->ClearWill();
  leaves.reset();
  EXPECT_EQ(store->Get("other will", milliseconds(50)), std::nullopt);
}

TEST(TcpStoreTest, RefusesClientsThatDoNotKnowTheSecret) {
  TcpStoreServer server({"127.0.0.1", 0, "the secret"});
  TcpStoreAddress wrong = server.address();
  for (const char* const secret : {"", "a secret", "the secret "}) {
    wrong.secret = secret;
    EXPECT_THAT(MessageOf<StoreError>([&] { ConnectTcpStore(wrong, seconds(20)); }),
                AllOf(HasSubstr("the store of rank 0 at 127.0.0.1:"),
                      HasSubstr("is LOCKSTEP_SECRET the same on all ranks?")));
  }
}

// The client also demands proof from the server.
TEST(TcpStoreTest, DoesNotTrustAServerThatDoesNotKnowTheSecret) {
  const Socket listener = Listen("127.0.0.1", 0);
  const TcpStoreAddress address{"127.0.0.1", PortOf(listener), "the secret"};
  std::thread impostor([&] {
    const Socket client = Accept(listener, Socket::Deadline::max());
    const tcp_store::Hello hello;
    const auto soon = std::chrono::steady_clock::now() + seconds(60);
    client.SendAll(&hello, sizeof(hello), soon);
    tcp_store::Proof proof;
    client.ReceiveAll(&proof, sizeof(proof), soon);
    client.SendAll(&proof.mac, sizeof(proof.mac), soon);
  });
  EXPECT_THAT(MessageOf<StoreError>([&] { ConnectTcpStore(address, seconds(60)); }),
              HasSubstr("does not know the secret"));
  impostor.join();
}

TEST(TcpStoreTest, DropsClientsThatBreakTheProtocolAndServesTheOthers) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server.address(), seconds(20));
  const auto soon = Soon();
  const auto expect_dropped = [&](const Socket& socket) {
    EXPECT_THAT(MessageOf<StoreError>([&] {
                  char byte;
                  while (true) socket.ReceiveAll(&byte, 1, soon);
                }),
                HasSubstr("closed"));
  };
  // Something other than a proof.
  const Socket stranger = Connect("127.0.0.1", server.address().port, soon);
  const std::string http = "GET / HTTP/1.1\r\nHost: localhost\r\n" + std::string(200, 'x');
  stranger.SendAll(http.data(), http.size(), soon);
  expect_dropped(stranger);
  // Sizes beyond the bounds, an unknown operation, an empty key.
  for (const auto& [op, key, value] : {std::tuple<uint32_t, uint32_t, uint32_t>{0, 1025, 0},
                                       {0, 0xffffffffu, 0xffffffffu},
                                       {0, 1, 0x7fffffffu},
                                       {77, 1, 0},
                                       {2, 0, 0}}) {
    const Socket client = ProvenClient(server);
    tcp_store::Request request;
    request.op = static_cast<tcp_store::Op>(op);
    request.key_bytes = key;
    request.value_bytes = value;
    client.SendAll(&request, sizeof(request), soon);
    client.SendAll("k", 1, soon);
    expect_dropped(client);
  }
  store->Set("key", "still here");
  EXPECT_EQ(store->Get("key", seconds(1)), "still here");
}

TEST(TcpStoreTest, IsFullAtSomePoint) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server.address(), seconds(20));
  const std::string value(Store::kMaxValue, 'v');
  EXPECT_THAT(MessageOf<StoreError>([&] {
                for (int i = 0; i < 65; ++i) store->Set(StrCat("key ", i), value);
              }),
              HasSubstr("the store is full"));
}

// Positions and logs are overwritten throughout a run.
TEST_P(StoreTest, OverwritingTakesNoRoom) {
  const std::string value(GetParam() == "File" ? 16 : Store::kMaxValue, 'v');
  for (int i = 0; i < 200; ++i) store_->Set("key", value);
  for (int i = 0; i < 200; ++i) store_->Set(StrCat("key ", i % 2), value);
  EXPECT_EQ(store_->Get("key", milliseconds(0)), value);
}

TEST(TcpStoreTest, WillsTakeNoRoomOnceTheyAreReplacedOrDone) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server.address(), seconds(20));
  const std::string value(Store::kMaxValue, 'v');
  for (int i = 0; i < 100; ++i) store->SetWill("will", value);
  for (int i = 0; i < 100; ++i) {
    const auto gone = store->Clone();
    gone->SetWill("will", value);
    if (i % 2 == 0) gone->ClearWill();
  }
  store->Set("key", value);
  EXPECT_EQ(store->Get("key", milliseconds(0)), value);
}

// It reads none of the answers to 50,000 requests, each of which would be a megabyte.
TEST(TcpStoreTest, DoesNotServeAClientThatDoesNotRead) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server.address(), seconds(20));
  store->Set("big", std::string(Store::kMaxValue, 'v'));
  const Socket client = ProvenClient(server);
  std::string requests;
  tcp_store::Request request;
  request.key_bytes = 3;
  for (int i = 0; i < 50'000; ++i) {
    requests.append(reinterpret_cast<const char*>(&request), sizeof(request));
    requests += "big";
  }
  const int64_t before = ResidentBytes();
  EXPECT_THROW(
      {
        const auto soon = std::chrono::steady_clock::now() + milliseconds(300);
        while (true) client.SendAll(requests.data(), requests.size(), soon);
      },
      StoreError);
  EXPECT_LT(ResidentBytes() - before, 64 << 20);
  EXPECT_EQ(store->Get("big", seconds(20))->size(), Store::kMaxValue);
  // Once it reads, it is served: the rest of the first answers is intact.
  std::string answers(20 * (sizeof(tcp_store::Reply) + Store::kMaxValue), '\0');
  client.ReceiveAll(answers.data(), answers.size(), Soon());
}

// It waits for a key, has sent more than the server buffers meanwhile, and is reset.
TEST(TcpStoreTest, DropsAClientThatEndsWhileItsBufferIsFull) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server.address(), seconds(20));
  {
    const Socket client = ProvenClient(server);
    tcp_store::Request will, get;
    will.op = tcp_store::Op::kSetWill;
    will.key_bytes = will.value_bytes = will.first_bytes = 4;
    get.op = tcp_store::Op::kGet;
    get.key_bytes = 3;
    get.number = 3'600'000;
    client.SendAll(&will, sizeof(will), Soon());
    client.SendAll("willgone", 8, Soon());
    client.SendAll(&get, sizeof(get), Soon());
    client.SendAll("key", 3, Soon());
    EXPECT_THROW(
        {
          const std::string more(1 << 20, 'x');
          const auto soon = std::chrono::steady_clock::now() + milliseconds(500);
          while (true) client.SendAll(more.data(), more.size(), soon);
        },
        StoreError);
    const linger reset = {1, 0};
    setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }
  EXPECT_EQ(store->Get("will", seconds(10)), "gone");
}

// Lowers this process's descriptor limit, and uses up all but `left` descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(int left) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = kLimit;
    setrlimit(RLIMIT_NOFILE, &few);
    do {
      taken_.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    } while (taken_.back().fd() >= 0);
    taken_.pop_back();
    for (int i = 0; i < left; ++i) taken_.pop_back();
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

  static constexpr int kLimit = 64;

 private:
  rlimit before_ = {};
  std::vector<FileDescriptor> taken_;
};

testing::Matcher<std::string> NamesTheLimit() {
  return AllOf(HasSubstr(StrCat("a process may have ", FewDescriptors::kLimit, " descriptors")),
               HasSubstr("ulimit -n 4096"));
}

TEST(TcpStoreTest, NamesTheLimitOfDescriptorsAndRecovers) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server.address(), seconds(20));
  const auto begin = std::chrono::steady_clock::now();
  {
    const FewDescriptors none(0);
    // This side has none left.
    EXPECT_THAT(
        MessageOf<NoDescriptorsError>([&] { ConnectTcpStore(server.address(), seconds(60)); }),
        NamesTheLimit());
    EXPECT_THAT(MessageOf<StoreError>([&] {
                  TcpStoreServer another({"127.0.0.1", 0, ""});
                }),
                NamesTheLimit());
  }
  {
    const FewDescriptors one(1);
    // One for this side, none for the server.
    EXPECT_THAT(MessageOf<StoreError>([&] { ConnectTcpStore(server.address(), seconds(60)); }),
                AllOf(HasSubstr("rank 0 has no file descriptor left"), NamesTheLimit()));
    // Connected clients are still served.
    store->Set("key", "value");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(20));
  EXPECT_EQ(ConnectTcpStore(server.address(), seconds(20))->Get("key", milliseconds(0)), "value");
}

TEST(TcpStoreTest, RestsWhileNoDescriptorIsLeft) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const FewDescriptors two(2);
  // They wait to be accepted; not even the server's reserve descriptor is available.
  const Socket a = Connect("127.0.0.1", server.address().port, Soon());
  const Socket b = Connect("127.0.0.1", server.address().port, Soon());
  const double before = ProcessStateOf().cpu_seconds;
  std::this_thread::sleep_for(milliseconds(700));
  EXPECT_LT(ProcessStateOf().cpu_seconds - before, 0.2);
}

TEST(FileStoreTest, NamesTheLimitOfDescriptors) {
  const auto store = OpenFileStore(FreshFolder(), 0, seconds(1));
  store->Set("key", "value");
  const FewDescriptors none(0);
  EXPECT_THAT(MessageOf<StoreError>([&] { store->Get("key", milliseconds(0)); }), NamesTheLimit());
  EXPECT_THAT(MessageOf<StoreError>([&] { store->Set("key", "other"); }), NamesTheLimit());
}

// A watcher waits throughout a run, and sleeps between looks.
TEST(FileStoreTest, LooksRarelyForWhatItHasWaitedForLong) {
  const auto store = OpenFileStore(FreshFolder(), 0, seconds(1));
  const auto sleeps = [] {
    rusage usage = {};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const auto before = sleeps();
  EXPECT_EQ(store->Get("never", seconds(3)), std::nullopt);
  EXPECT_LT(sleeps() - before, 75);
  // A new key is still noticed soon, and an interrupt at once.
  const auto waiter = store->Clone();
  std::thread interrupter([&] {
    std::this_thread::sleep_for(seconds(1));
    waiter->Interrupt();
  });
  EXPECT_THROW(waiter->Get("never", seconds(600)), StoreError);
  interrupter.join();
}

TEST(TcpStoreTest, NamesTheProcessThatHasThePort) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  EXPECT_THAT(MessageOf<StoreError>([&] { TcpStoreServer again(server.address()); }),
              AllOf(HasSubstr(StrCat("127.0.0.1:", server.address().port)),
                    HasSubstr(StrCat("which process ", getpid(), " (")),
                    HasSubstr("choose another MASTER_PORT")));
}

TEST(TcpStoreTest, NeedsASecretWhereOthersCanReachIt) {
  EXPECT_THAT(MessageOf([] {
                TcpStoreServer server({"0.0.0.0", 0, ""});
              }),
              HasSubstr("set LOCKSTEP_SECRET"));
  TcpStoreServer server({"0.0.0.0", 0, "secret"});
  EXPECT_GT(server.address().port, 0);
}

TEST(TcpStoreTest, SaysThatNobodyListens) {
  int port = 0;
  {
    const Socket listener = Listen("127.0.0.1", 0);
    port = PortOf(listener);
  }
  EXPECT_THAT(MessageOf<StoreError>([&] {
                ConnectTcpStore({"127.0.0.1", port, ""}, milliseconds(50));
              }),
              AllOf(HasSubstr("cannot connect to 127.0.0.1"), HasSubstr("refused")));
  EXPECT_THAT(MessageOf<StoreError>([&] {
                ConnectTcpStore({"no.such.host.invalid", 1, ""}, milliseconds(50));
              }),
              HasSubstr("no.such.host.invalid"));
}

TEST(TcpStoreTest, EndsItsClientsWaits) {
  auto server = std::make_unique<TcpStoreServer>(TcpStoreAddress{"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server->address(), seconds(20));
  std::thread ends([&] {
    std::this_thread::sleep_for(milliseconds(50));
    server.reset();
  });
  EXPECT_THAT(MessageOf<StoreError>([&] { store->Get("never", seconds(600)); }),
              AllOf(HasSubstr("the store of rank 0"), HasSubstr("closed")));
  ends.join();
}

TEST(FileStoreTest, EachRunNeedsItsOwnFolder) {
  const std::string folder = FreshFolder();
  const auto rank_0 = OpenFileStore(folder, 0, seconds(1));
  OpenFileStore(folder, 1, seconds(60))->Set("key", "of rank 1");
  EXPECT_EQ(rank_0->Get("key", seconds(0)), "of rank 1");
  EXPECT_THAT(
      MessageOf<StoreError>([&] { OpenFileStore(folder, 0, seconds(1)); }),
      AllOf(HasSubstr(folder), HasSubstr(StrCat("was used by process ", getpid(), " on "))));
  EXPECT_THAT(MessageOf<StoreError>([&] { OpenFileStore(FreshFolder(), 1, milliseconds(20)); }),
              HasSubstr("rank 0 did not claim it within 0.02 s"));
}

TEST(FileStoreTest, SaysWhatTheSystemRefuses) {
  const std::string file = FreshFolder();
  std::ofstream(file) << "not a folder";
  EXPECT_THAT(MessageOf<StoreError>([&] { OpenFileStore(file + "/x", 0, seconds(1)); }),
              HasSubstr("cannot be created"));
}

}  // namespace
}  // namespace lockstep::dist
