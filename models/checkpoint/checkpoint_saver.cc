#include "models/checkpoint/checkpoint_saver.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iostream>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "dist/collective.h"
#include "dist/groups/agreement.h"
#include "dist/groups/pause.h"

namespace lockstep::models {

// What the thread that writes needs. Where the disk hangs, it may outlive the saver.
struct SaveContext {
  CheckpointStore store;
  dist::ProcessGroup* group;
  HostSnapshot snapshot;
  std::mutex mutex;        // held while the group is used
  bool abandoned = false;  // the group may be gone
};

namespace {

constexpr int64_t kTextLimit = 8192;  // of what ranks tell each other: files with hashes, errors
constexpr std::string_view kFailed = "failed: ";

bool HasFiles(const CheckpointFiles& files) {
  return !files.tensors.empty() || !files.texts.empty();
}

// ---- Errors of other ranks: "failed: InputError: the text" ----

template <class E>
[[noreturn]] void Throw(const std::string& text) {
  throw E(text);
}
template <class E>
bool Is(const std::exception& e) {
  return dynamic_cast<const E*>(&e) != nullptr;
}

struct ErrorClass {
  std::string_view name;
  bool (*is)(const std::exception&);
  void (*raise)(const std::string&);
};
// The last is that of all others.
constexpr ErrorClass kClasses[] = {
    {"IoError", Is<IoError>, Throw<IoError>},
    {"InputError", Is<InputError>, Throw<InputError>},
    {"ArgumentError", Is<ArgumentError>, Throw<ArgumentError>},
    {"OutOfMemoryError", Is<OutOfMemoryError>, Throw<OutOfMemoryError>},
    {"Error", [](const std::exception&) { return true; }, Throw<Error>},
};

std::string FailureText(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    const auto of = std::ranges::find_if(kClasses, [&](const ErrorClass& c) { return c.is(e); });
    return StrCat(kFailed, of->name, ": ", e.what());
  } catch (...) {
    return StrCat(kFailed, "Error: an unknown exception");
  }
}

struct RankError {
  const ErrorClass* of;
  std::string text;
};
std::optional<RankError> ParseFailure(const std::string& report) {
  if (!report.starts_with(kFailed)) return std::nullopt;
  const std::string text = report.substr(kFailed.size());
  for (const ErrorClass& c : kClasses) {
    if (text.starts_with(StrCat(c.name, ": ")))
      return RankError{&c, text.substr(c.name.size() + 2)};
  }
  return RankError{&kClasses[std::size(kClasses) - 1], text};
}

// Throws if there are errors among the reports. All ranks throw the same class: that of the first
// error that is not an IoError, since IoErrors alone need not end a run.
void ThrowFailures(const std::exception_ptr& mine, const std::vector<std::string>& reports) {
  const ErrorClass* of = nullptr;
  std::string text;
  for (size_t r = 0; r < reports.size(); ++r) {
    const auto error = ParseFailure(reports[r]);
    if (!error) continue;
    if (of == nullptr || of == &kClasses[0]) of = error->of;
    text += StrCat(text.empty() ? "" : "; ", "rank ", r, ": ", error->text);
  }
  if (of == nullptr) return;
  if (mine && ParseFailure(FailureText(mine))->of == of) std::rethrow_exception(mine);
  of->raise(text);
}

// One rank's part in a save.
class SharedSave {
 public:
  using Scope = dist::Pause::Scope;
  // `waits`: who waits while this rank writes its files, and is told what for; none: it has none.
  SharedSave(SaveContext& context, std::optional<Scope> waits) : context_(context), waits_(waits) {
    Use([](dist::ProcessGroup*) {});
  }

  // Rank 0.
  void Lead(const CheckpointFiles& files) {
    enum { kUnannounced, kWriting, kRefused, kWritten } state = kUnannounced;
    try {
      context_.store.Save(
          files.step,
          [&](CheckpointWriter& out) {
            state = kWriting;
            Exchange(out.folder_name());
            const std::exception_ptr error = Add(files, out);
            const auto reports = Exchange(error ? FailureText(error) : "");
            state = kRefused;
            ThrowTogether(error, reports);  // all ranks know of them now
            state = kWritten;
            for (size_t r = 1; r < reports.size(); ++r) {
              out.Adopt(ParseManifest(reports[r], StrCat("the report of rank ", r)));
            }
          },
          files.val_loss, files.measured_on, files.pinned);
    } catch (const dist::CollectiveError&) {
      throw;
    } catch (...) {
      if (state != kRefused) {
        Exchange(FailureText(std::current_exception()));
        Meet();
      }
      throw;
    }
    Exchange("");
  }

  // The others.
  void Follow(const CheckpointFiles& files) {
    const std::string folder = Exchange("")[0];
    ThrowTogether({}, {folder});
    CheckpointManifest manifest{.step = files.step};
    std::exception_ptr error;
    try {
      // A rank that has nothing to write need not see the folder.
      if (HasFiles(files)) {
        CheckpointWriter out = context_.store.Join(folder, &manifest);
        error = Add(files, out);
      }
    } catch (const IoError&) {
      error = std::current_exception();
    }
    ThrowTogether(error, Exchange(error ? FailureText(error) : ManifestText(manifest)));
    ThrowTogether({}, {Exchange("")[0]});
  }

 private:
  static std::exception_ptr Add(const CheckpointFiles& files, CheckpointWriter& out) {
    try {
      for (const auto& [name, tensors] : files.tensors) {
        out.AddSafetensors(name, tensors, files.metadata);
      }
      for (const auto& [name, text] : files.texts) out.AddFile(name, text);
    } catch (const std::exception&) {
      return std::current_exception();
    }
    return nullptr;
  }

  void ThrowTogether(const std::exception_ptr& mine, const std::vector<std::string>& reports) {
    try {
      ThrowFailures(mine, reports);
    } catch (...) {
      Meet();
      throw;
    }
  }

  // A rank that ends by its exception must not interrupt those that are about to hear the reason.
  void Meet() {
    Use([](dist::ProcessGroup* group) {
      if (group != nullptr) dist::MeetBeforeThrowing(*group);
    });
  }

  // What all ranks say.
  std::vector<std::string> Exchange(const std::string& text) {
    std::vector<std::string> texts = {text};
    Use([&](dist::ProcessGroup* group) {
      if (group != nullptr) texts = dist::GatherTexts(*group, text, kTextLimit);
    });
    return texts;
  }

  // Runs f(group), outside of the pause.
  void Use(const std::function<void(dist::ProcessGroup*)>& f) {
    const std::lock_guard<std::mutex> lock(context_.mutex);
    if (context_.abandoned) throw Error("the run has ended while its checkpoint was being written");
    pause_.reset();
    f(context_.group);
    if (waits_) pause_.emplace(context_.group, "writing a checkpoint", *waits_);
  }

  SaveContext& context_;
  const std::optional<Scope> waits_;
  std::optional<dist::Pause> pause_;
};

void Write(SaveContext& context, const CheckpointFiles& files, dist::Pause::Scope scope) {
  SharedSave save(context, HasFiles(files) ? std::optional(scope) : std::nullopt);
  if (context.group == nullptr || context.group->rank() == 0) {
    save.Lead(files);
  } else {
    save.Follow(files);
  }
}

std::atomic<bool> left_thread = false;

CheckpointSaverOptions Completed(CheckpointSaverOptions options) {
  if (!options.warn) {
    options.warn = [](const std::string& text) { std::cerr << "warning: " << text << std::endl; };
  }
  return options;
}

}  // namespace

CheckpointSaver::CheckpointSaver(const CheckpointStore& store, CheckpointSaverOptions options)
    : options_(Completed(std::move(options))),
      exceptions_(std::uncaught_exceptions()),
      context_(
          new SaveContext{.store = store,
                          .group = options_.group,
                          .snapshot = HostSnapshot(options_.device, options_.max_snapshot_bytes)}),
      async_(options_.async) {}

CheckpointSaver::~CheckpointSaver() {
  // After that, nothing but its own disk can hold it up.
  constexpr std::chrono::milliseconds kOfDisk(5000);
  if (!writer_.joinable()) return;
  const bool shared = options_.group != nullptr;
  if (shared && !EndsWithin(options_.patience)) GiveUp();
  if (!shared || EndsWithin(std::min(options_.patience, kOfDisk))) {
    writer_.join();
    return;
  }
  options_.warn(
      "the disk of out_dir does not answer: the process ends without the checkpoint that was being "
      "written");
  left_thread = true;
  writer_.detach();
}

bool CheckpointSaver::has_left_thread() { return left_thread; }

bool CheckpointSaver::EndsWithin(std::chrono::milliseconds time) const {
  return saving_.wait_for(time) == std::future_status::ready;
}

// Ends the run, so that no rank waits in the group any more.
void CheckpointSaver::GiveUp() {
  dist::ProcessGroup& group = *options_.group;
  const auto pause = group.control()->pause(dist::TopicOf(group.name()));
  const std::string writes = pause ? Describe(*pause) : "a checkpoint was being written";
  if (std::uncaught_exceptions() > exceptions_) {
    group.Abort("its group was destroyed by an exception, while " + writes);
  } else if (!pause) {
    group.Abort("its run ended while " + writes);
  } else {
    dist::Failure late;
    late.cause = dist::CollectiveError::Cause::kTimeout;
    late.rank = group.world_rank();
    late.group = group.name();
    late.culprits = {pause->rank};
    late.reason = StrCat(writes, ", and the run has ended");
    group.control()->Fail(late);
  }
  const std::lock_guard<std::mutex> lock(context_->mutex);
  context_->abandoned = true;
}

void CheckpointSaver::Save(const Collect& collect) {
  LS_CHECK(!saving_.valid(), "call Wait before the next Save: it has the outcome of the last one");
  HostSnapshot* const snapshot = async_ ? &context_->snapshot : nullptr;
  if (snapshot) snapshot->Begin();
  const auto files = std::make_shared<const CheckpointFiles>(collect(snapshot));
  if (snapshot) snapshot->End();
  if (snapshot && !snapshot->complete()) LoseSnapshot();
  using Scope = dist::Pause::Scope;
  std::packaged_task<void()> task(
      [context = context_, files, snapshot, scope = async_ ? Scope::kGroup : Scope::kRun] {
        if (snapshot) snapshot->Wait();
        Write(*context, *files, scope);
      });
  saving_ = task.get_future();
  if (async_) {
    writer_ = std::thread(std::move(task));
    return;
  }
  // Where the others' threads write, they wait for this rank in other groups, even while it waits.
  std::optional<dist::Pause> pause;
  if (options_.async) pause.emplace(options_.group, "writing a checkpoint");
  task();
}

// There is no memory for it.
void CheckpointSaver::LoseSnapshot() {
  async_ = false;
  const int64_t bytes = context_->snapshot.reserved_bytes();
  context_->snapshot.Release();  // what was copied lives as long as the files that hold it
  const dist::ProcessGroup* const group = options_.group;
  options_.warn(
      StrCat(group ? StrCat("rank ", group->world_rank()) : std::string("the host"),
             " cannot hold a copy of the weights and the optimizer's state in host memory (only ",
             bytes >> 20,
             " MiB fit); from now on training waits while checkpoints are written, as with "
             "checkpoint.async=false (this is said once)"));
}

bool CheckpointSaver::Ended() const {
  return saving_.valid() && EndsWithin(std::chrono::milliseconds(0));
}

void CheckpointSaver::Wait() {
  if (!saving_.valid()) return;
  saving_.wait();
  if (writer_.joinable()) writer_.join();
  saving_.get();
}

}  // namespace lockstep::models
