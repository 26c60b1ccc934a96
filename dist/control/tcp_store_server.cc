#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "dist/control/key_values.h"
#include "dist/control/socket.h"
#include "dist/control/tcp_store.h"
#include "dist/control/tcp_store_acceptor.h"
#include "dist/control/tcp_store_protocol.h"

namespace lockstep::dist {
namespace {

using namespace tcp_store;  // NOLINT
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxClients = 4096;
constexpr size_t kMaxStored = 64 * 1024 * 1024;  // bytes
// Once a client leaves this many bytes of answers unread, its requests wait.
constexpr size_t kMaxUnread = 64 * 1024;  // bytes
constexpr auto kProofTime = std::chrono::seconds(10);
// The longest wait of a client, in milliseconds, so that sums of times cannot overflow.
constexpr int64_t kMaxWait = int64_t{7} * 24 * 3600 * 1000;

struct Will {
  std::string key, at_end, at_silence;
  Clock::duration silence;

  size_t cost() const { return KeyValues::CostOf(key, at_end.size() + at_silence.size()); }
};

struct Client {
  Socket socket;
  Nonce nonce = {};
  bool proven = false;
  // When it must have proven itself; afterwards, until when it waits for a key.
  Clock::time_point deadline;
  std::optional<std::string> waits_for = std::nullopt;
  std::optional<Will> will = std::nullopt;
  Clock::time_point heard = Clock::now();  // last message
  std::string in, out;
};

template <class T>
void Append(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <class T>
T Front(std::string_view in) {
  T value;
  std::memcpy(static_cast<void*>(&value), in.data(), sizeof(value));
  return value;
}

void Answer(Client* client, Status status, std::string_view value = {}, int64_t number = 0) {
  Reply reply;
  reply.status = status;
  reply.value_bytes = static_cast<uint32_t>(value.size());
  reply.number = number;
  Append(&client->out, reply);
  client->out += value;
}

FileDescriptor MakeWake() {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  if (wake.fd() < 0) throw StoreError("the store cannot be served: " + SystemErrorText(errno));
  return wake;
}

}  // namespace

// One thread serves all sockets. A client that breaks the protocol is disconnected.
class TcpStoreServer::Loop {
 public:
  Loop(Socket listener, std::string secret)
      : acceptor_(std::move(listener)),
        wake_(MakeWake()),
        secret_(std::move(secret)),
        thread_([this] { Run(); }) {}
  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_.fd(), &one, sizeof(one));
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      std::vector<pollfd> fds = {{wake_.fd(), POLLIN, 0}, {acceptor_.fd(), POLLIN, 0}};
      auto next = Clock::now() + std::chrono::minutes(1);
      if (fds[1].fd < 0) next = std::min(next, acceptor_.retry_at());
      for (const Client& client : clients_) {
        const bool full = client.in.size() > Limit() || client.out.size() > kMaxUnread;
        fds.push_back({client.socket.fd(),
                       static_cast<short>((full ? 0 : POLLIN) | (client.out.empty() ? 0 : POLLOUT)),
                       0});
        if (!client.proven || client.waits_for) next = std::min(next, client.deadline);
        if (HasSilenceLimit(client)) next = std::min(next, client.heard + client.will->silence);
      }
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count();
      poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(0, left + 1)));
      if (fds[0].revents != 0) return;
      size_t i = 2;
      for (auto client = clients_.begin(); client != clients_.end(); ++i) {
        // Receive would notice it, but it is not called for a client whose buffer is full.
        const bool ended =
            (fds[i].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0 && client->in.size() > Limit();
        const bool alive = !ended && (fds[i].revents == 0 || Receive(&*client)) &&
                           Serve(&*client) && CheckSilence(&*client);
        client = alive ? std::next(client) : Drop(client);
      }
      if (fds[1].revents != 0) Accept();
    }
  }

  static size_t Limit() { return sizeof(Request) + Store::kMaxKey + Store::kMaxValue; }

  void Accept() {
    Socket socket = acceptor_.Accept(/*full=*/clients_.size() >= kMaxClients);
    if (socket.fd() < 0) return;
    Client& client = clients_.emplace_back();
    client.socket = std::move(socket);
    client.nonce = RandomNonce();
    client.deadline = Clock::now() + kProofTime;
    Hello hello;
    hello.nonce = client.nonce;
    Append(&client.out, hello);
    if (!Send(&client)) clients_.pop_back();
  }

  // Erases the client and executes its will; returns the next client.
  std::list<Client>::iterator Drop(std::list<Client>::iterator client) {
    const auto will = TakeWill(&*client);
    const auto next = clients_.erase(client);
    if (will) Do(will->key, will->at_end);
    return next;
  }

  static bool HasSilenceLimit(const Client& client) {
    return client.will && client.will->silence.count() > 0;
  }

  // False once the client is gone.
  bool CheckSilence(Client* client) {
    const auto silent = [&] { return Clock::now() - client->heard > client->will->silence; };
    if (!HasSilenceLimit(*client) || !silent()) return true;
    // It may have sent something while this process was stopped.
    if (!Receive(client)) return false;
    if (!silent()) return Serve(client);
    const auto will = TakeWill(client);
    Do(will->key, will->at_silence);
    return true;
  }

  // Takes the will and releases the bytes charged for it.
  std::optional<Will> TakeWill(Client* client) {
    if (client->will) keys_.Release(client->will->cost());
    return std::exchange(client->will, std::nullopt);
  }

  // Executes a will. There is room for its value: that of the will itself.
  void Do(const std::string& key, const std::string& value) {
    if (keys_.Find(key) != nullptr) return;
    keys_.Set(key, value);
    Wake(key);
  }

  // Sends what can be sent now; false once the client is gone.
  static bool Send(Client* client) {
    while (!client->out.empty()) {
      const ssize_t n =
          send(client->socket.fd(), client->out.data(), client->out.size(), MSG_NOSIGNAL);
      if (n < 0 && errno != EINTR) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        return false;
      }
      if (n > 0) client->out.erase(0, static_cast<size_t>(n));
    }
    return true;
  }

  // Receives what has arrived; false once the client is gone.
  static bool Receive(Client* client) {
    char buffer[16 * 1024];
    while (client->in.size() <= Limit()) {
      const ssize_t n = recv(client->socket.fd(), buffer, sizeof(buffer), 0);
      if (n == 0) return false;
      if (n < 0) {
        if (errno == EINTR) continue;
        return errno == EAGAIN || errno == EWOULDBLOCK;
      }
      client->heard = Clock::now();
      client->in.append(buffer, static_cast<size_t>(n));
    }
    return true;
  }

  // Answers the requests that have arrived and waits that have timed out; false if the client is to
  // be dropped. A client that does not read its answers is not served until it does.
  bool Serve(Client* client) {
    if (!client->proven && !CheckProof(client)) return false;
    const std::string_view in = client->in;
    size_t at = 0;
    while (client->proven) {
      if (client->out.size() > kMaxUnread) {
        if (!Send(client)) return false;
        if (client->out.size() > kMaxUnread) break;
      }
      if (client->waits_for && !AnswerWaiting(client)) break;
      if (in.size() - at < sizeof(Request)) break;
      const auto request = Front<Request>(in.substr(at));
      if (request.key_bytes == 0 || request.key_bytes > Store::kMaxKey ||
          request.value_bytes > Store::kMaxValue) {
        return false;
      }
      const size_t size = sizeof(Request) + request.key_bytes + request.value_bytes;
      if (in.size() - at < size) break;
      const std::string key(in.substr(at + sizeof(Request), request.key_bytes));
      const std::string value(
          in.substr(at + sizeof(Request) + request.key_bytes, request.value_bytes));
      at += size;
      if (!Do(client, request, key, value)) return false;
    }
    client->in.erase(0, at);
    // Receive nothing more here: it would not be served before the next event.
    return Send(client);
  }

  // Whether the wait has ended.
  bool AnswerWaiting(Client* client) {
    if (const std::string* const value = keys_.Find(*client->waits_for)) {
      Answer(client, Status::kOk, *value);
    } else if (Clock::now() >= client->deadline) {
      Answer(client, Status::kTimeout);
    } else {
      return false;
    }
    client->waits_for.reset();
    return true;
  }

  // False if its proof is wrong or its time is up.
  bool CheckProof(Client* client) {
    if (client->in.size() < sizeof(Proof)) return Clock::now() < client->deadline;
    const auto proof = Front<Proof>(client->in);
    client->in.erase(0, sizeof(Proof));
    if (proof.magic != kMagic ||
        !Equal(proof.mac, MacOf(secret_, "client", client->nonce, proof.nonce))) {
      return false;
    }
    Append(&client->out, MacOf(secret_, "server", client->nonce, proof.nonce));
    client->proven = true;
    return true;
  }

  bool Do(Client* client, const Request& request, const std::string& key,
          const std::string& value) {
    switch (request.op) {
      case Op::kSetIfAbsent:
        if (const std::string* const there = keys_.Find(key)) {
          Answer(client, Status::kOk, *there);
          return true;
        }
        [[fallthrough]];
      case Op::kSet:
        if (!keys_.Set(key, value)) return Refuse(client);
        Answer(client, Status::kOk,
               request.op == Op::kSetIfAbsent ? std::string_view(value) : std::string_view());
        Wake(key);
        return true;
      case Op::kGet:
        client->waits_for = key;
        client->deadline = Clock::now() + std::chrono::milliseconds(
                                              std::clamp<int64_t>(request.number, 0, kMaxWait));
        return true;
      case Op::kAdd: {
        const auto sum = keys_.Add(key, request.number);
        if (!sum) return Refuse(client);
        Answer(client, Status::kOk, {}, *sum);
        return true;
      }
      case Op::kDelete:
        keys_.Delete(key);
        Answer(client, Status::kOk);
        return true;
      case Op::kBytes:
        Answer(client, Status::kOk, {}, static_cast<int64_t>(keys_.bytes()));
        return true;
      case Op::kSetWill:
        return DoSetWill(client, request, key, value);
      case Op::kClearWill:
        TakeWill(client);
        Answer(client, Status::kOk);
        return true;
    }
    return false;
  }

  bool DoSetWill(Client* client, const Request& request, const std::string& key,
                 const std::string& value) {
    if (request.first_bytes > value.size()) return false;
    TakeWill(client);
    Will will{key, value.substr(0, request.first_bytes), value.substr(request.first_bytes),
              std::chrono::milliseconds(std::clamp<int64_t>(request.number, 0, kMaxWait))};
    if (!keys_.Charge(will.cost())) return Refuse(client);
    client->will = std::move(will);
    Answer(client, Status::kOk);
    return true;
  }

  // Answers the clients that wait for the key; the bytes are sent in the next round.
  void Wake(const std::string& key) {
    for (Client& client : clients_) {
      if (client.waits_for == key) {
        Answer(&client, Status::kOk, *keys_.Find(key));
        client.waits_for.reset();
      }
    }
  }

  // Tells the client that the store is full.
  bool Refuse(Client* client) {
    Answer(client, Status::kRefused,
           StrCat("the store is full: it holds ", keys_.bytes(), " bytes of at most ", kMaxStored));
    return true;
  }

  TcpStoreAcceptor acceptor_;
  FileDescriptor wake_;
  const std::string secret_;
  std::list<Client> clients_;
  KeyValues keys_{kMaxStored};
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const TcpStoreAddress& address) : address_(address) {
  LS_CHECK(
      !address.secret.empty() || IsLoopback(address.host), "the store at ", address.host,
      " can be reached from other machines and needs a secret: set LOCKSTEP_SECRET to the same "
      "value on all ranks, for example that of `openssl rand -hex 16`");
  Socket listener = Listen(address.host, address.port);
  address_.port = PortOf(listener);
  loop_ = std::make_unique<Loop>(std::move(listener), address.secret);
}

TcpStoreServer::~TcpStoreServer() = default;

}  // namespace lockstep::dist
