#include "tests/dist/crowd.h"

#include "tests/dist/in_process.h"

namespace lockstep::dist::test {

Crowd::Crowd(int size, std::chrono::milliseconds heartbeat) : refusals_(static_cast<size_t>(size)) {
  planes_ = MakeLocalPlanes(size, {.loops = 2,
                                   .heartbeat = heartbeat,
                                   .data = false,
                                   .on_open = [this](int rank, const std::string& refusal) {
                                     const std::lock_guard<std::mutex> lock(mutex_);
                                     ++opened_;
                                     refusals_[static_cast<size_t>(rank)] = refusal;
                                     changed_.notify_all();
                                   }});
  for (const auto& plane : planes_) {
    plane->AddListener([this](const Failure&) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++failed_;
      changed_.notify_all();
    });
  }
}

// A rank leaves after those below it in the tree, whose numbers are higher.
Crowd::~Crowd() {
  while (!planes_.empty()) planes_.pop_back();
}

void Crowd::Kill(int rank) {
  plane(rank).Cut();
  planes_[static_cast<size_t>(rank)].reset();
}

template <class Predicate>
bool Crowd::Wait(std::chrono::milliseconds timeout, const Predicate& done) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, timeout, done);
}

bool Crowd::WaitForOpen(std::chrono::milliseconds timeout) {
  return Wait(timeout, [this] { return opened_ == size(); });
}

bool Crowd::WaitForFailures(int ranks, std::chrono::milliseconds timeout) {
  return Wait(timeout, [this, ranks] { return failed_ >= ranks; });
}

std::vector<std::string> Crowd::refusals() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return refusals_;
}

}  // namespace lockstep::dist::test
