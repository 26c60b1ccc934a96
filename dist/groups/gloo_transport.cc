#include "dist/groups/gloo_transport.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <sched.h>

#include <algorithm>
#include <csignal>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

// Gloo multiplies its timeout by five while it connects.
constexpr int kGlooTimeoutFactor = 5;

// Gloo's view of a store.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(dist::Store& store, std::string prefix, milliseconds timeout)
      : store_(store), prefix_(std::move(prefix)), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.Set(prefix_ + key, std::string(data.begin(), data.end()));
    set_.push_back(prefix_ + key);
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_.Get(prefix_ + key, timeout_);
    if (!value) throw StoreError(StrCat("rank ", key, " did not connect in time"));
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

  void DeleteKeys() {
    for (const std::string& key : set_) store_.Delete(key);
  }

 private:
  dist::Store& store_;
  const std::string prefix_;
  const milliseconds timeout_;
  std::vector<std::string> set_;
};

// Threads created in this scope do not preempt others when they wake. Gloo's thread would preempt
// one that holds a connection's lock and then spin on that lock until its time slice is over: for
// each message, milliseconds of a core that should compute.
class BatchSchedulingScope {
 public:
  // Leaves a policy that the user chose unchanged.
  BatchSchedulingScope() : changed_(sched_getscheduler(0) == SCHED_OTHER && Choose(SCHED_BATCH)) {}
  ~BatchSchedulingScope() {
    if (changed_) Choose(SCHED_OTHER);
  }
  BatchSchedulingScope(const BatchSchedulingScope&) = delete;
  BatchSchedulingScope& operator=(const BatchSchedulingScope&) = delete;

 private:
  // Sets this thread's policy, which new threads inherit.
  static bool Choose(int policy) {
    const sched_param priority = {};
    return sched_setscheduler(0, policy, &priority) == 0;
  }
  const bool changed_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(std::unique_ptr<Store> store, const std::string& name, int rank, int size,
                const GlooAddress& address, milliseconds timeout)
      : store_(std::move(store)),
        address_(address),
        timeout_(timeout),
        sent_(static_cast<size_t>(size)),
        received_(static_cast<size_t>(size)) {
    try {
      gloo::transport::tcp::attr attributes;
      attributes.iface = address.interface;
      if (address.interface.empty()) attributes.hostname = address.host;
      std::shared_ptr<gloo::transport::Device> device;
      {
        const BatchSchedulingScope here;
        device = gloo::transport::tcp::CreateDevice(attributes);
      }
      context_ = std::make_shared<gloo::rendezvous::Context>(rank, size);
      context_->setTimeout(timeout / kGlooTimeoutFactor + milliseconds(1));
      GlooStore gloo_store(*store_, name + "/gloo/", timeout);
      context_->connectFullMesh(gloo_store, device);
      // Once all are connected, the addresses are useless, and would mislead a later group of the
      // same name.
      MeetAll(Clock::now() + timeout);
      gloo_store.DeleteKeys();
    } catch (const StoreError&) {
      throw;
    } catch (const std::exception& error) {
      throw StoreError(StrCat("rank ", rank, ", group '", name,
                              "': the ranks could not connect: ", error.what()));
    }
  }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  void Run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
           Deadline deadline) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const Incoming& m : incoming) Add(&receiving_, m.peer, m.data, m.bytes);
      // Gloo only reads the data.
      for (const Outgoing& m : outgoing) Add(&sending_, m.peer, const_cast<void*>(m.data), m.bytes);
    }
    // Keep exchanging with the others if a peer is gone, so that they do not take this rank for
    // lost.
    std::optional<TransportError> lost;
    const auto begin = [&](int peer, const auto& f) {
      try {
        Try(peer, deadline, f);
      } catch (const TransportError& e) {
        if (!lost) lost = e;
      }
    };
    for (const Pending& p : receiving_) {
      begin(p.peer, [&] { p.buffer->recv(p.peer, received_[Index(p)]++); });
    }
    for (const Pending& p : sending_) {
      begin(p.peer, [&] { p.buffer->send(p.peer, sent_[Index(p)]++); });
    }
    if (lost) throw *lost;
    for (Pending& p : receiving_) {
      WaitFor(&p, deadline, [&](milliseconds left) { return p.buffer->waitRecv(nullptr, left); });
    }
    for (Pending& p : sending_) {
      WaitFor(&p, deadline, [&](milliseconds left) { return p.buffer->waitSend(nullptr, left); });
    }
    Forget();
  }

  void Close() override {
    // Not under mutex_: it takes the locks of the thread that moves the bytes.
    context_->closeConnections();
    Forget();
  }

  void Interrupt() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    interrupted_ = true;
    AbortWaits();
  }

  void Extend(Deadline deadline) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    extended_ = std::max(extended_, deadline);
    AbortWaits();  // they restart with the time that is now left
  }

  std::unique_ptr<Transport> Duplicate(const std::string& name) override {
    return MakeGlooTransport(*store_, name, rank(), size(), address_, timeout_);
  }

 private:
  // A barrier of all ranks.
  void MeetAll(Deadline deadline) {
    std::vector<char> bytes(static_cast<size_t>(size()) + 1);
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      outgoing.push_back({r, &bytes.back(), 1});
      incoming.push_back({r, &bytes[static_cast<size_t>(r)], 1});
    }
    try {
      GlooTransport::Run(outgoing, incoming, deadline);
    } catch (...) {
      GlooTransport::Close();  // so that nothing writes into `bytes` any more
      throw;
    }
  }

  struct Pending {
    int peer;
    Buffer buffer;
    bool done = false;
  };

  void Forget() {
    std::vector<Pending> receiving, sending;
    const std::lock_guard<std::mutex> lock(mutex_);
    receiving.swap(receiving_);
    sending.swap(sending_);
  }

  // The lock is held.
  void AbortWaits() {
    for (const Pending& p : receiving_) p.buffer->abortWaitRecv();
    for (const Pending& p : sending_) p.buffer->abortWaitSend();
  }

  // The lock is held.
  void Add(std::vector<Pending>* list, int peer, void* data, int64_t bytes) {
    if (interrupted_) ThrowInterrupted();
    list->push_back({peer, context_->createUnboundBuffer(data, static_cast<size_t>(bytes))});
  }

  static size_t Index(const Pending& p) { return static_cast<size_t>(p.peer); }
  milliseconds Left(Deadline deadline) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::chrono::duration_cast<milliseconds>(std::max(deadline, extended_) - Clock::now());
  }

  // wait(time left) returns false if it was aborted.
  template <class F>
  void WaitFor(Pending* p, Deadline deadline, const F& wait) {
    while (!p->done) {
      Try(p->peer, deadline, [&] { p->done = wait(std::max(milliseconds(1), Left(deadline))); });
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!p->done && interrupted_) ThrowInterrupted();
    }
  }

  template <class F>
  void Try(int peer, Deadline deadline, const F& f) {
    try {
      f();
    } catch (const TransportError&) {
      throw;
    } catch (const std::exception& error) {
      // Gloo's exceptions share no other base class. When a wait times out, Gloo closes all
      // connections; messages that had arrived before still count.
      if (Left(deadline) <= milliseconds(2)) ThrowTimeout();
      throw TransportError(TransportError::Cause::kLostRank, Ended(peer),
                           StrCat("its connection ended (", error.what(), ")"));
    }
  }

  // The peers whose connections have ended, `peer` among them.
  std::vector<int> Ended(int peer) {
    constexpr uint64_t kSlotOfNoMessage = ~uint64_t{0};
    std::vector<int> ended = {peer};
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || r == peer) continue;
      char byte;
      const Buffer probe = context_->createUnboundBuffer(&byte, 1);
      try {
        probe->recv(r, kSlotOfNoMessage);
      } catch (const std::exception&) {
        ended.push_back(r);
      }
    }
    return ended;
  }

  [[noreturn]] void ThrowTimeout() const {
    std::set<int> peers;
    const auto check = [&](const Pending& p, bool receiving) {
      if (p.done) return;
      const auto arrived = [&] {
        return receiving ? p.buffer->waitRecv(nullptr, milliseconds(1))
                         : p.buffer->waitSend(nullptr, milliseconds(1));
      };
      try {
        // After AbortWaits the first answer is false whether or not the message arrived, so ask
        // twice.
        if (!arrived() && !arrived()) peers.insert(p.peer);
      } catch (const std::exception&) {
        peers.insert(p.peer);
      }
    };
    for (const Pending& p : receiving_) check(p, true);
    for (const Pending& p : sending_) check(p, false);
    throw TransportError(TransportError::Cause::kTimeout, {peers.begin(), peers.end()},
                         "messages did not come in time");
  }
  [[noreturn]] static void ThrowInterrupted() {
    throw TransportError(TransportError::Cause::kInterrupted, {}, "the transport is interrupted");
  }

  const std::unique_ptr<Store> store_;
  const GlooAddress address_;
  const milliseconds timeout_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  // The number of messages to and from each rank so far, used as Gloo's slots.
  std::vector<uint64_t> sent_, received_;

  std::mutex mutex_;
  bool interrupted_ = false;
  Deadline extended_ = Deadline::min();
  // Changed only by the thread in Run, under the lock.
  std::vector<Pending> receiving_, sending_;
};

}  // namespace

std::unique_ptr<Transport> MakeGlooTransport(Store& store, const std::string& name, int rank,
                                             int size, const GlooAddress& address,
                                             milliseconds timeout) {
  // Gloo writes to sockets of ranks that may be gone, which must cause an error, not end the
  // process.
  std::signal(SIGPIPE, SIG_IGN);
  return std::make_unique<GlooTransport>(store.Clone(), name, rank, size, address, timeout);
}

}  // namespace lockstep::dist
