#include "models/checkpoint/checkpoint_saver.h"

#include <chrono>
#include <exception>
#include <optional>

#include "dist/collective.h"
#include "dist/groups/agreement.h"
#include "dist/groups/pause.h"

namespace lockstep::models {
namespace {

constexpr int64_t kTextLimit = 8192;  // of what ranks tell each other: files with hashes, errors
constexpr std::string_view kFailed = "failed: ";

bool HasFiles(const CheckpointFiles& files) {
  return !files.tensors.empty() || !files.texts.empty();
}

// One rank's part in a save.
class SharedSave {
 public:
  // `pauses`: whether other ranks, which wait, are told what for (dist/groups/pause.h).
  SharedSave(dist::ProcessGroup* group, bool pauses) : group_(group), pauses_(pauses) { Pause(); }

  // Rank 0.
  void Lead(CheckpointStore& store, const CheckpointFiles& files) {
    enum { kUnannounced, kWriting, kRefused, kWritten } state = kUnannounced;
    try {
      store.Save(
          files.step,
          [&](CheckpointWriter& out) {
            state = kWriting;
            Exchange(out.folder_name());
            const std::exception_ptr error = Add(files, out);
            const auto reports = Exchange(error ? Failure(error) : "");
            state = kRefused;
            ThrowFailures(error, reports);  // of which all ranks know now
            state = kWritten;
            for (size_t r = 1; r < reports.size(); ++r) {
              out.Adopt(ParseManifest(reports[r], StrCat("the report of rank ", r)));
            }
          },
          files.val_loss);
    } catch (const dist::CollectiveError&) {
      throw;
    } catch (...) {
      if (state != kRefused) {
        Exchange(Failure(std::current_exception()));
        Meet();
      }
      throw;
    }
    Exchange("");
  }

  // The others.
  void Follow(const CheckpointStore& store, const CheckpointFiles& files) {
    const std::string folder = Exchange("")[0];
    if (folder.starts_with(kFailed)) ThrowFailures({}, {folder});
    CheckpointManifest manifest{.step = files.step};
    std::exception_ptr error;
    try {
      // A rank that has nothing to write need not see the folder.
      if (HasFiles(files)) {
        CheckpointWriter out = store.Join(folder, &manifest);
        error = Add(files, out);
      }
    } catch (const IoError&) {
      error = std::current_exception();
    }
    ThrowFailures(error, Exchange(error ? Failure(error) : ManifestText(manifest)));
    ThrowFailures({}, {Exchange("")[0]});
  }

 private:
  static std::exception_ptr Add(const CheckpointFiles& files, CheckpointWriter& out) {
    try {
      for (const auto& [name, tensors] : files.tensors) out.AddSafetensors(name, tensors);
      for (const auto& [name, text] : files.texts) out.AddFile(name, text);
    } catch (const std::exception&) {
      return std::current_exception();
    }
    return nullptr;
  }

  static std::string Failure(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      return StrCat(kFailed, e.what());
    } catch (...) {
      return StrCat(kFailed, "an unknown exception");
    }
  }

  // `mine` may be null; otherwise it is among them.
  void ThrowFailures(const std::exception_ptr& mine, const std::vector<std::string>& reports) {
    if (mine) {
      Meet();
      std::rethrow_exception(mine);
    }
    std::string text;
    for (size_t r = 0; r < reports.size(); ++r) {
      if (!reports[r].starts_with(kFailed)) continue;
      text += StrCat(text.empty() ? "" : "; ", "rank ", r, ": ", reports[r].substr(kFailed.size()));
    }
    if (text.empty()) return;
    Meet();
    throw IoError(text);
  }

  // A rank that ends by its exception must not interrupt those that are about to hear the reason.
  void Meet() {
    if (group_ != nullptr) dist::MeetBeforeThrowing(*group_);
  }

  // What all ranks say.
  std::vector<std::string> Exchange(const std::string& text) {
    if (group_ == nullptr) return {text};
    pause_.reset();
    auto texts = dist::GatherTexts(*group_, text, kTextLimit);
    Pause();
    return texts;
  }
  void Pause() {
    if (pauses_) pause_.emplace(group_, "writing a checkpoint");
  }

  dist::ProcessGroup* const group_;
  const bool pauses_;
  std::optional<dist::Pause> pause_;
};

}  // namespace

CheckpointSaver::CheckpointSaver(CheckpointStore& store, const CheckpointSaverOptions& options)
    : store_(store), options_(options), snapshot_(options.device) {
  if (options_.async) lane_ = dist::MakeLane(kCpu);
}

CheckpointSaver::~CheckpointSaver() {
  constexpr std::chrono::seconds kPatience(30);
  if (!saving_.valid()) return;
  if (options_.group == nullptr) {
    saving_.wait();
  } else if (saving_.wait_for(kPatience) != std::future_status::ready) {
    options_.group->Abort("the run ended while a checkpoint was being written");
  }
}

void CheckpointSaver::Save(const Collect& collect) {
  LS_CHECK(!saving_.valid(), "call Wait before the next Save: it has the outcome of the last one");
  if (!options_.async) {
    const CheckpointFiles files = collect(nullptr);
    std::packaged_task<void()> task([&] { Write(files); });
    saving_ = task.get_future();
    task();
    return;
  }
  snapshot_.Begin();
  CheckpointFiles files = collect(&snapshot_);
  snapshot_.End();
  const auto task = std::make_shared<std::packaged_task<void()>>([this, files = std::move(files)] {
    snapshot_.Wait();
    Write(files);
  });
  saving_ = task->get_future();
  lane_->Submit([task] { (*task)(); });
}

bool CheckpointSaver::Ended() const {
  return saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void CheckpointSaver::Wait() {
  if (saving_.valid()) saving_.get();
}

void CheckpointSaver::Write(const CheckpointFiles& files) {
  SharedSave save(options_.group, /*pauses=*/!options_.async && HasFiles(files));
  if (options_.group == nullptr || options_.group->rank() == 0) {
    save.Lead(store_, files);
  } else {
    save.Follow(store_, files);
  }
}

}  // namespace lockstep::models
