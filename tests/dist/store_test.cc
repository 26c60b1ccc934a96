// What every store promises; and TCP's and the file store's own manners.
#include "dist/store.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "dist/file_store.h"
#include "dist/in_process_store.h"
#include "dist/socket.h"
#include "dist/tcp_store.h"
#include "dist/tcp_store_protocol.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

std::string FreshFolder() {
  static int counter = 0;
  return StrCat(testing::TempDir(), "store_", getpid(), "_", ++counter);
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

TEST_P(StoreTest, PrefixesKeepApart) {
  PrefixStore a(store_->Clone(), "a/"), b(store_->Clone(), "b/");
  a.Set("key", "of a");
  EXPECT_EQ(b.Get("key", milliseconds(0)), std::nullopt);
  EXPECT_EQ(a.Clone()->Get("key", milliseconds(0)), "of a");
  EXPECT_EQ(store_->Get("a/key", milliseconds(0)), "of a");
}

TEST(TcpStoreTest, DoesTheWillOfWhoeverIsGone) {
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

TEST(TcpStoreTest, RefusesThoseWhoDoNotKnowTheSecret) {
  TcpStoreServer server({"127.0.0.1", 0, "the secret"});
  TcpStoreAddress wrong = server.address();
  for (const char* const secret : {"", "a secret", "the secret "}) {
    wrong.secret = secret;
    EXPECT_THAT(MessageOf<StoreError>([&] { ConnectTcpStore(wrong, seconds(20)); }),
                AllOf(HasSubstr("the store of rank 0 at 127.0.0.1:"),
                      HasSubstr("is LOCKSTEP_SECRET the same on all ranks?")));
  }
}

// The server is not the only one that asks for proof.
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

TEST(TcpStoreTest, DropsThoseWhoBreakTheProtocolAndServesTheOthers) {
  TcpStoreServer server({"127.0.0.1", 0, ""});
  const auto store = ConnectTcpStore(server.address(), seconds(20));
  const auto soon = std::chrono::steady_clock::now() + seconds(60);
  const auto prove = [&](const Socket& socket) {
    tcp_store::Hello hello;
    socket.ReceiveAll(&hello, sizeof(hello), soon);
    tcp_store::Proof proof;
    proof.mac = tcp_store::MacOf("", "client", hello.nonce, proof.nonce);
    socket.SendAll(&proof, sizeof(proof), soon);
    tcp_store::Mac mac;
    socket.ReceiveAll(mac.data(), mac.size(), soon);
  };
  const auto expect_dropped = [&](const Socket& socket) {
    EXPECT_THAT(MessageOf<StoreError>([&] {
                  char byte;
                  while (true) socket.ReceiveAll(&byte, 1, soon);
                }),
                HasSubstr("closed"));
  };
  // Something that is no proof.
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
    const Socket client = Connect("127.0.0.1", server.address().port, soon);
    prove(client);
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

TEST(FileStoreTest, EachRunHasAFolderOfItsOwn) {
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
