#include "dist/in_process_store.h"

#include <condition_variable>
#include <map>
#include <mutex>

namespace lockstep::dist {
namespace {

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::map<std::string, int64_t> numbers;
};

class InProcessStore : public Store {
 public:
  explicit InProcessStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  void Set(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    const auto lock = Lock();
    shared_->values[key] = value;
    shared_->changed.notify_all();
  }
  std::string SetIfAbsent(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    const auto lock = Lock();
    const auto [at, inserted] = shared_->values.emplace(key, value);
    if (inserted) shared_->changed.notify_all();
    return at->second;
  }
  std::optional<std::string> Get(const std::string& key, Milliseconds timeout) override {
    CheckKey(key);
    auto lock = Lock();
    const auto ready = [&] { return interrupted_ || shared_->values.count(key) != 0; };
    const bool found = shared_->changed.wait_for(lock, timeout, ready);
    CheckNotInterrupted();
    if (!found) return std::nullopt;
    return shared_->values.at(key);
  }
  int64_t Add(const std::string& key, int64_t delta) override {
    CheckKey(key);
    const auto lock = Lock();
    return shared_->numbers[key] += delta;
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
