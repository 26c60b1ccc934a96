#include "dist/flight/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <set>
#include <utility>

#include "core/io/file.h"
#include "core/system/unix_time.h"
#include "dist/control/socket.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;

// The recorders of this process: an exception that nobody catches ends it without destructors.
struct Recorders {
  std::mutex mutex;
  std::set<FlightRecorder*> all;
  std::terminate_handler next = nullptr;  // what std::terminate did before
};
Recorders& TheRecorders() {
  static auto* const recorders = new Recorders;  // threads may end the process after main
  return *recorders;
}

std::string TextOf(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an unknown exception";
  }
  return "std::terminate was called";
}

// Another thread writes, since this one may hold a lock that is needed for it.
[[noreturn]] void WriteAndTerminate() {
  static std::atomic<bool> entered{false};
  if (!entered.exchange(true)) {
    try {
      const auto written = std::make_shared<std::promise<void>>();
      std::thread([written, error = TextOf(std::current_exception())] {
        const std::lock_guard<std::mutex> lock(TheRecorders().mutex);
        for (FlightRecorder* const recorder : TheRecorders().all) recorder->Write(error);
        written->set_value();
      }).detach();
      written->get_future().wait_for(FlightRecorder::kPatience + std::chrono::seconds(1));
    } catch (const std::exception& e) {
      std::fprintf(stderr, "warning: no flight record: %s\n", e.what());
    }
  }
  TheRecorders().next();
  std::abort();  // no handler returns
}

}  // namespace

FlightRecorder::FlightRecorder(std::string folder, int rank, int ranks)
    : folder_(std::move(folder)) {
  record_.rank = rank;
  record_.ranks = ranks;
  record_.process = getpid();
  record_.host = HostName();
  Recorders& recorders = TheRecorders();
  const std::lock_guard<std::mutex> lock(recorders.mutex);
  if (recorders.next == nullptr) recorders.next = std::set_terminate(WriteAndTerminate);
  recorders.all.insert(this);
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
    writing_->began = Clock::now();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "warning: no flight record: %s\n", e.what());
  }
}

void FlightRecorder::Writing::Run() {
  std::unique_lock<std::mutex> lock(mutex);
  while (text) {
    const std::string contents = *std::exchange(text, std::nullopt);
    began = Clock::now();
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

// Returns whether all is written. Since the time counts from when the disk was asked, one that
// hangs is waited for only once, whichever thread asks.
bool FlightRecorder::WaitForWriter() {
  Writing& w = *writing_;
  std::unique_lock<std::mutex> lock(w.mutex);
  while (w.busy && Clock::now() < w.began + kPatience) {
    w.changed.wait_until(lock, w.began + kPatience);
  }
  if (w.busy && !std::exchange(w.warned, true)) {
    std::fprintf(stderr,
                 "warning: no flight record yet: %s has not been written for %d s; does the "
                 "disk hang?\n",
                 JoinPath(w.folder, w.name).c_str(), static_cast<int>(kPatience.count()));
  }
  return !w.busy;
}

FlightRecorder::~FlightRecorder() {
  {
    const std::lock_guard<std::mutex> lock(TheRecorders().mutex);
    TheRecorders().all.erase(this);
  }
  if (!writer_.joinable()) return;
  WaitForWriter() ? writer_.join() : writer_.detach();
}

}  // namespace lockstep::dist
