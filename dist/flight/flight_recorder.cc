#include "dist/flight/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "core/io/file.h"
#include "core/system/unix_time.h"
#include "dist/control/socket.h"

namespace lockstep::dist {
FlightRecorder::FlightRecorder(std::string folder, int rank, int ranks)
    : folder_(std::move(folder)) {
  record_.rank = rank;
  record_.ranks = ranks;
  record_.process = getpid();
  record_.host = HostName();
}

void FlightRecorder::SetFolder(const std::string& folder) {
  const std::lock_guard<std::mutex> lock(mutex_);
  folder_ = folder;
}

void FlightRecorder::SetMeeting(const std::string& meeting) {
  const std::lock_guard<std::mutex> lock(mutex_);
  record_.meeting = meeting;
}

void FlightRecorder::Submit(const std::string& group, const Collective& call,
                            const std::string& purpose) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& calls = calls_[group];
  calls.push_back({.call = call, .purpose = purpose, .submitted = UnixTime()});
  if (calls.size() > kDepth) calls.pop_front();
  if (calls_.size() > kGroups) ForgetOldGroup(group);
}

// Bounds the memory of groups that come and go. Groups that failed are kept.
void FlightRecorder::ForgetOldGroup(const std::string& other_than) {
  auto oldest = calls_.end();
  for (auto at = calls_.begin(); at != calls_.end(); ++at) {
    const auto written = record_.groups.find(at->first);
    const bool failed = written != record_.groups.end() && written->second.failure;
    if (failed || at->first == other_than) continue;
    if (oldest == calls_.end() || at->second.back().submitted < oldest->second.back().submitted) {
      oldest = at;
    }
  }
  if (oldest == calls_.end()) return;
  record_.groups.erase(oldest->first);
  calls_.erase(oldest);
}

// Searches from the newest call: exchanges have numbers of their own.
FlightCall* FlightRecorder::Find(const std::string& group, const Collective& call) {
  const auto known = calls_.find(group);
  if (known == calls_.end()) return nullptr;
  auto& calls = known->second;
  for (auto at = calls.rbegin(); at != calls.rend(); ++at) {
    if (at->call == call) return &*at;
  }
  return nullptr;
}

void FlightRecorder::Begin(const std::string& group, const Collective& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (FlightCall* const c = Find(group, call)) c->state = FlightCall::State::kRunning;
}

void FlightRecorder::End(const std::string& group, const Collective& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  FlightCall* const c = Find(group, call);
  if (c == nullptr) return;
  c->state = FlightCall::State::kDone;
  c->ended = UnixTime();
}

void FlightRecorder::Fail(const std::string& group, const Failure& failure) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& known = record_.groups[group].failure;
  if (known) return;
  known = failure;
  StartWriting();
}

void FlightRecorder::Write(const std::string& error) noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    record_.error = error;
    StartWriting();
  }
  WaitForWriter();
}

// A record that cannot be written must not hide the failure.
void FlightRecorder::StartWriting() noexcept {
  if (folder_.empty()) return;
  try {
    record_.written = UnixTime();
    for (const auto& [name, calls] : calls_) {
      record_.groups[name].calls.assign(calls.begin(), calls.end());
    }
    const std::lock_guard<std::mutex> lock(writing_->mutex);
    writing_->folder = folder_;
    writing_->name = FlightFileName(record_.rank);
    writing_->text = ToJson(record_);
    if (writing_->busy) return;              // it writes this one next
    if (writer_.joinable()) writer_.join();  // it only has to return
    writer_ = std::thread([writing = writing_] { writing->Run(); });
    writing_->busy = true;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "warning: no flight record: %s\n", e.what());
  }
}

void FlightRecorder::Writing::Run() {
  std::unique_lock<std::mutex> lock(mutex);
  while (text) {
    const std::string contents = *std::exchange(text, std::nullopt);
    const std::string to = folder, file = JoinPath(folder, name);
    lock.unlock();
    try {
      if (IsDirectory(ParentPath(to))) {
        MakeDirectories(to);
        WriteFileAtomically(file, contents);
      }
    } catch (const std::exception& e) {
      std::fprintf(stderr, "warning: no flight record: %s\n", e.what());
    }
    lock.lock();
  }
  busy = false;
  changed.notify_all();
}

// Returns whether all is written.
bool FlightRecorder::WaitForWriter() {
  std::unique_lock<std::mutex> lock(writing_->mutex);
  if (writing_->changed.wait_for(lock, kPatience, [this] { return !writing_->busy; })) return true;
  std::fprintf(stderr,
               "warning: no flight record yet: %s has not been written for %d s; does the "
               "disk hang?\n",
               JoinPath(writing_->folder, writing_->name).c_str(),
               static_cast<int>(kPatience.count()));
  return false;
}

FlightRecorder::~FlightRecorder() {
  if (!writer_.joinable()) return;
  WaitForWriter() ? writer_.join() : writer_.detach();
}

}  // namespace lockstep::dist
