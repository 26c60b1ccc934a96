#include "models/checkpoint/checkpoint_mirror.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "models/checkpoint/fetched_checkpoint.h"

namespace lockstep::models {
namespace {

constexpr std::chrono::milliseconds kGlance(100);

StoreOptions WithStop(StoreOptions options, std::stop_token stop, std::atomic<int64_t>* moved) {
  options.stop = std::move(stop);
  options.moved = moved;
  return options;
}

}  // namespace

CheckpointMirror::CheckpointMirror(std::string out_dir, const std::string& place,
                                   MirrorOptions options)
    : out_dir_(std::move(out_dir)),
      options_(std::move(options)),
      store_(OpenStore(place, WithStop(options_.store, stop_.get_token(), &moved_))),
      remote_(*store_),
      thread_([this] { Run(); }) {}

CheckpointMirror::~CheckpointMirror() {
  {
    const std::lock_guard lock(mutex_);
    stop_.request_stop();
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointMirror::Update() {
  {
    const std::lock_guard lock(mutex_);
    asked_ = true;
  }
  changed_.notify_all();
}

void CheckpointMirror::Run() {
  // Of this thread: training goes first.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return asked_ || stop_.stop_requested(); });
    if (stop_.stop_requested()) return;
    asked_ = false;
    busy_ = true;
    lock.unlock();
    std::string problem;
    try {
      BringUpToDate();
    } catch (const std::exception& e) {
      problem = e.what();
      looked_ = false;
    }
    if (!problem.empty() && !stop_.stop_requested()) {
      options_.warn(StrCat("checkpoints are not copied: ", problem,
                           "; training continues, and the next checkpoint is tried again"));
    }
    lock.lock();
    busy_ = false;
    problem_ = problem;
    changed_.notify_all();
  }
}

void CheckpointMirror::BringUpToDate() {
  if (!looked_) {
    store_->RemoveUnfinished();
    Look();
  }
  for (;;) {
    const std::vector<Checkpoint> missing = Missing();
    {
      const std::lock_guard lock(mutex_);
      missing_.clear();
      for (const Checkpoint& c : missing) {
        missing_ += (missing_.empty() ? "" : ", ") + BaseName(c.path);
      }
    }
    if (missing.empty()) return;
    const HeldCheckpoint held(missing[0].path);
    const std::string done = JoinPath(held.path(), kManifestName);
    if (!PathExists(done)) continue;  // it was removed meanwhile
    const std::string text = ReadFile(done);
    CopyRecords();
    try {
      remote_.Upload(held.path());
    } catch (const Error&) {
      if (PathExists(done) && ReadFile(done) == text) throw;
      continue;  // it was replaced meanwhile
    }
    remote_.RemoveOld(options_.keep, options_.keep_best);
    Look();
  }
}

void CheckpointMirror::Look() {
  there_.clear();
  for (RemoteCheckpoint& c : remote_.List()) there_.emplace(c.name, std::move(c));
  looked_ = true;
}

// What the run folder has, and the place should have; the newest first.
std::vector<Checkpoint> CheckpointMirror::Missing() const {
  struct Known {
    CheckpointManifest manifest;
    Checkpoint here;  // no path: the place has it
  };
  std::map<std::string, Known> known;
  for (const auto& [name, c] : there_) known[name] = {c.manifest, {}};
  for (const Checkpoint& c : CheckpointStore(out_dir_).List()) {
    const std::string name = BaseName(c.path), done = JoinPath(c.path, kManifestName);
    try {
      const std::string text = ReadFile(done);
      const auto there = there_.find(name);
      if (there != there_.end() && there->second.done == text) continue;
      known[name] = {ParseManifest(text, done), c};
    } catch (const Error&) {
      continue;  // it was removed meanwhile, or is damaged: the run says so when it starts
    }
  }
  std::vector<Known> all;
  for (auto& [name, k] : known) all.push_back(std::move(k));
  std::ranges::sort(all, SavedLater, &Known::manifest);
  std::vector<CheckpointManifest> manifests;
  for (const Known& k : all) manifests.push_back(k.manifest);
  const std::vector<bool> retained = Retained(manifests, options_.keep, options_.keep_best);
  std::vector<Checkpoint> missing;
  for (size_t i = 0; i < all.size(); ++i) {
    if (retained[i] && !all[i].here.path.empty()) missing.push_back(all[i].here);
  }
  return missing;
}

// At least the steps up to the checkpoint that is copied next; the run drops later ones.
void CheckpointMirror::CopyRecords() {
  for (const char* name : kRunRecords) {
    const std::string path = JoinPath(out_dir_, name);
    if (!PathExists(path)) continue;
    const std::string text = ReadFile(path);
    store_->Put(name, std::as_bytes(std::span(text)));
  }
}

bool CheckpointMirror::Finish(const std::function<bool()>& stop) {
  using Clock = std::chrono::steady_clock;
  Update();
  const Clock::time_point begin = Clock::now();
  Clock::time_point last_move = begin;
  int64_t moved = -1;
  bool said = false;
  std::unique_lock lock(mutex_);
  const auto done = [&] { return !asked_ && !busy_; };
  std::string why;
  while (!changed_.wait_for(lock, kGlance, done) && why.empty()) {
    const Clock::time_point now = Clock::now();
    if (moved_ != moved) last_move = now;
    moved = moved_;
    if (stop()) why = "a signal ended the waiting";
    if (now - last_move > options_.patience) why = "nothing has moved for too long";
    if (now - begin > options_.longest) why = "it takes too long";
    if (std::exchange(said, true)) continue;
    options_.say(StrCat("waiting until ", missing_.empty() ? "all checkpoints" : missing_,
                        " can be read at ", store_->place(), "; Ctrl-C ends the waiting"));
  }
  if (why.empty()) why = problem_;
  if (why.empty()) return true;
  options_.warn(StrCat(store_->place(), " does not have ",
                       missing_.empty() ? "all checkpoints" : missing_, ": ", why,
                       "; the same command, run again, copies what is missing"));
  return false;
}

}  // namespace lockstep::models
