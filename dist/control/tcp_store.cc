// The client; tcp_store_server.cc is the other side.
#include "dist/control/tcp_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "dist/control/socket.h"
#include "dist/control/tcp_store_protocol.h"

namespace lockstep::dist {
namespace {

using namespace tcp_store;  // NOLINT
using Clock = std::chrono::steady_clock;

// How long an answer may take, beyond what the request asks to wait.
constexpr auto kPatience = std::chrono::seconds(20);
// Between attempts to connect.
constexpr auto kPause = std::chrono::milliseconds(100);
// How long to retry while the server has no room for another client.
constexpr auto kRoomTime = std::chrono::seconds(2);

class TcpStore : public Store {
 public:
  TcpStore(TcpStoreAddress address, Milliseconds timeout) : address_(std::move(address)) {
    const auto deadline = Clock::now() + timeout;
    try {
      Authenticate(Greet(deadline), deadline);
    } catch (const NoDescriptorsError& error) {
      throw NoDescriptorsError(StrCat(Describe(), ": ", error.what()));
    } catch (const StoreError& error) {
      throw StoreError(StrCat(Describe(), ": ", error.what()));
    }
  }

  void Set(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    Call(Op::kSet, key, value, 0, Milliseconds(0));
  }
  std::string SetIfAbsent(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    return Call(Op::kSetIfAbsent, key, value, 0, Milliseconds(0)).value;
  }
  std::optional<std::string> Get(const std::string& key, Milliseconds timeout) override {
    CheckKey(key);
    Answer answer = Call(Op::kGet, key, "", timeout.count(), timeout);
    if (answer.status == Status::kTimeout) return std::nullopt;
    return std::move(answer.value);
  }
  int64_t Add(const std::string& key, int64_t delta) override {
    CheckKey(key);
    return Call(Op::kAdd, key, "", delta, Milliseconds(0)).number;
  }
  using Store::SetWill;
  void SetWill(const std::string& key, const std::string& value, const std::string& silent_value,
               Milliseconds silence) override {
    CheckValue(key, value + silent_value);
    Call(Op::kSetWill, key, value + silent_value, silence.count(), Milliseconds(0),
         static_cast<uint32_t>(value.size()));
    if (silence.count() > 0) patience_ = silence;
  }
  void Delete(const std::string& key) override {
    CheckKey(key);
    Call(Op::kDelete, key, "", 0, Milliseconds(0));
  }
  int64_t Bytes() override { return Call(Op::kBytes, "bytes", "", 0, Milliseconds(0)).number; }
  std::optional<int> ServedBy() const override { return 0; }
  void ClearWill() override { Call(Op::kClearWill, "will", "", 0, Milliseconds(0)); }

  std::unique_ptr<Store> Clone() override {
    return std::make_unique<TcpStore>(address_,
                                      std::chrono::duration_cast<Milliseconds>(kPatience));
  }
  void Interrupt() override {
    interrupted_ = true;
    socket_.Shutdown();
  }
  std::string Describe() const override {
    return StrCat("the store of rank 0 at ", address_.host, ":", address_.port);
  }

 private:
  struct Answer {
    Status status;
    int64_t number;
    std::string value;
  };

  // Retries if the server ends before it says anything: another may be about to start.
  Hello Greet(Clock::time_point deadline) {
    const auto room_deadline = std::min<Clock::time_point>(deadline, Clock::now() + kRoomTime);
    while (true) {
      socket_ = Socket();  // its descriptor may be the only one
      socket_ = Connect(address_.host, address_.port, deadline);
      try {
        Hello hello;
        socket_.ReceiveAll(&hello, sizeof(hello), deadline);
        if (hello.magic != kNoRoomMagic) return hello;
        if (Clock::now() + kPause >= room_deadline) throw NoDescriptorsError(NoRoom(hello));
      } catch (const NoDescriptorsError&) {
        throw;
      } catch (const StoreError&) {
        if (Clock::now() + kPause >= deadline) throw;
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  static std::string NoRoom(const Hello& hello) {
    if (hello.limit == 0) return "it serves as many clients as it can";
    return StrCat("the process of rank 0 has no file descriptor left for this connection; ",
                  DescriptorHint(hello.limit));
  }

  void Authenticate(const Hello& hello, Clock::time_point deadline) {
    if (hello.magic != kMagic)
      throw StoreError("the program listening there is not Lockstep's store");
    Proof proof;
    proof.nonce = RandomNonce();
    proof.mac = MacOf(address_.secret, "client", hello.nonce, proof.nonce);
    socket_.SendAll(&proof, sizeof(proof), deadline);
    Mac mac;
    try {
      socket_.ReceiveAll(mac.data(), mac.size(), deadline);
    } catch (const StoreError& error) {
      throw StoreError(StrCat("it refuses this rank (", error.what(),
                              "); is LOCKSTEP_SECRET the same on all ranks?"));
    }
    if (!Equal(mac, MacOf(address_.secret, "server", hello.nonce, proof.nonce))) {
      throw StoreError("it does not know the secret; is another program listening there?");
    }
  }

  Answer Call(Op op, const std::string& key, const std::string& value, int64_t number,
              Milliseconds wait, uint32_t first_bytes = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (interrupted_) throw StoreError(StrCat(Describe(), ": interrupted"));
    if (!failure_.empty()) throw StoreError(failure_);
    try {
      const auto deadline = Clock::now() + wait + patience_.load();
      Request request;
      request.op = op;
      request.key_bytes = static_cast<uint32_t>(key.size());
      request.value_bytes = static_cast<uint32_t>(value.size());
      request.first_bytes = first_bytes;
      request.number = number;
      std::string message(sizeof(request), '\0');
      std::memcpy(message.data(), &request, sizeof(request));
      message += key;
      message += value;
      socket_.SendAll(message.data(), message.size(), deadline);
      Reply reply;
      socket_.ReceiveAll(&reply, sizeof(reply), deadline);
      if (reply.value_bytes > kMaxValue) throw StoreError("its answer is too long");
      Answer answer{reply.status, reply.number, std::string(reply.value_bytes, '\0')};
      socket_.ReceiveAll(answer.value.data(), answer.value.size(), deadline);
      if (answer.status == Status::kRefused) throw StoreError(answer.value);
      return answer;
    } catch (const StoreError& error) {
      // After a missing answer, the next one would be mistaken for it.
      failure_ = StrCat(Describe(), interrupted_ ? ": interrupted" : ": ",
                        interrupted_ ? "" : error.what());
      throw StoreError(failure_);
    }
  }

  const TcpStoreAddress address_;
  Socket socket_;
  std::atomic<Milliseconds> patience_{std::chrono::duration_cast<Milliseconds>(kPatience)};
  std::mutex mutex_;
  std::string failure_;
  std::atomic<bool> interrupted_{false};
};

}  // namespace

std::unique_ptr<Store> ConnectTcpStore(const TcpStoreAddress& address,
                                       std::chrono::milliseconds timeout) {
  return std::make_unique<TcpStore>(address, timeout);
}

}  // namespace lockstep::dist
