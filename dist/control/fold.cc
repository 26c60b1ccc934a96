#include "dist/control/fold.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace lockstep::dist {
namespace {

// How often a thread that waits looks whether it still should.
constexpr auto kPatience = std::chrono::milliseconds(20);

// The messages of a round have these numbers.
uint64_t Up(uint64_t round) { return 2 * round; }
uint64_t Down(uint64_t round) { return 2 * round + 1; }

}  // namespace

Fold::Fold(ControlPlane& plane, const std::string& name, std::vector<int> members, Combine combine,
           int fan_out)
    : plane_(plane),
      topic_(TopicOf(name + "/fold")),
      members_(std::move(members)),
      tree_(static_cast<int>(members_.size()), fan_out),
      index_(IndexOf(members_, plane.rank())),
      children_(tree_.Children(std::max(0, index_))),
      combine_(std::move(combine)) {
  LS_CHECK(index_ >= 0, "rank ", plane.rank(), " is not one of the ranks of '", name, "', ",
           ListRanks(members_));
  plane_.Subscribe(topic_, [this](int from, uint64_t number, const std::string& body) {
    OnMessage(from, number, body);
  });
}

Fold::~Fold() { plane_.Unsubscribe(topic_); }

void Fold::Bring(std::string text, Done done) {
  const uint64_t round = next_++;
  plane_.Post([this, round, text = std::move(text), done = std::move(done)] {
    rounds_[round].texts[index_] = text;
    rounds_[round].done = done;
    Advance(round);
  });
}

void Fold::OnMessage(int from, uint64_t number, const std::string& body) {
  const int index = IndexOf(members_, from);
  if (index < 0) return;
  const uint64_t round = number / 2;
  if (number == Down(round)) {
    if (index == tree_.Parent(index_) && rounds_.contains(round)) Finish(round, body);
    return;
  }
  if (tree_.Parent(index) != index_) return;
  rounds_[round].texts[index] = body;
  Advance(round);
}

// Passes on the subtree's text once it is complete.
void Fold::Advance(uint64_t number) {
  const auto& texts = rounds_[number].texts;
  if (texts.size() < children_.size() + 1) return;
  std::string all = texts.begin()->second;
  for (auto at = std::next(texts.begin()); at != texts.end(); ++at) all = combine_(all, at->second);
  if (index_ == 0) return Finish(number, all);
  plane_.Send(members_[static_cast<size_t>(tree_.Parent(index_))], topic_, Up(number),
              std::move(all));
}

void Fold::Finish(uint64_t number, const std::string& result) {
  for (const int child : children_) {
    plane_.Send(members_[static_cast<size_t>(child)], topic_, Down(number), result);
  }
  const Done done = std::move(rounds_.at(number).done);
  rounds_.erase(number);
  if (done) done(result);
}

std::optional<std::string> Fold::Run(std::string text, const std::function<bool()>& wait) {
  struct Waiting {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<std::string> result;
  };
  const auto waiting = std::make_shared<Waiting>();
  Bring(std::move(text), [waiting](const std::string& result) {
    const std::lock_guard<std::mutex> lock(waiting->mutex);
    waiting->result = result;
    waiting->changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(waiting->mutex);
  while (!waiting->changed.wait_for(lock, kPatience, [&] { return waiting->result.has_value(); })) {
    lock.unlock();
    const bool waits = wait();
    lock.lock();
    if (!waits) break;  // what comes out may have come before what ended the wait
  }
  return waiting->result;
}

}  // namespace lockstep::dist
