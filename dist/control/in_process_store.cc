#include "dist/control/in_process_store.h"

#include <condition_variable>
#include <mutex>

#include "dist/control/key_values.h"

namespace lockstep::dist {
namespace {

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  KeyValues keys;
};

class InProcessStore : public Store {
 public:
  explicit InProcessStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  void Set(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    const auto lock = Lock();
    shared_->keys.Set(key, value);
    shared_->changed.notify_all();
  }
  std::string SetIfAbsent(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    const auto lock = Lock();
    if (const std::string* const there = shared_->keys.Find(key)) return *there;
    shared_->keys.Set(key, value);
    shared_->changed.notify_all();
    return value;
  }
  std::optional<std::string> Get(const std::string& key, Milliseconds timeout) override {
    CheckKey(key);
    auto lock = Lock();
    const auto ready = [&] { return interrupted_ || shared_->keys.Find(key) != nullptr; };
    const bool found = shared_->changed.wait_for(lock, timeout, ready);
    CheckNotInterrupted();
    if (!found) return std::nullopt;
    return *shared_->keys.Find(key);
  }
  int64_t Add(const std::string& key, int64_t delta) override {
    CheckKey(key);
    const auto lock = Lock();
    return *shared_->keys.Add(key, delta);
  }
  void Delete(const std::string& key) override {
    CheckKey(key);
    const auto lock = Lock();
    shared_->keys.Delete(key);
  }
  int64_t Bytes() override {
    const auto lock = Lock();
    return static_cast<int64_t>(shared_->keys.bytes());
  }
  std::unique_ptr<Store> Clone() override { return std::make_unique<InProcessStore>(shared_); }
  void Interrupt() override {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    interrupted_ = true;
    shared_->changed.notify_all();
  }
  std::string Describe() const override { return "the store of this process"; }

 private:
  std::unique_lock<std::mutex> Lock() {
    std::unique_lock<std::mutex> lock(shared_->mutex);
    CheckNotInterrupted();
    return lock;
  }
  void CheckNotInterrupted() const {
    if (interrupted_) throw StoreError("the store of this process: interrupted");
  }

  std::shared_ptr<Shared> shared_;
  bool interrupted_ = false;
};

}  // namespace

std::unique_ptr<Store> MakeInProcessStore() {
  return std::make_unique<InProcessStore>(std::make_shared<Shared>());
}

}  // namespace lockstep::dist
