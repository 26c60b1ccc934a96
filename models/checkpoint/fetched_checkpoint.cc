#include "models/checkpoint/fetched_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/file_lock.h"
#include "core/io/sha256.h"
#include "core/system/environment.h"
#include "models/checkpoint/remote_checkpoints.h"

namespace lockstep::models {
namespace {

// Of a whole model, by a slow connection.
constexpr std::chrono::hours kFetchPatience(4);
constexpr char kStateFile[] = "trainer_state.json";

std::string CacheFolder() {
  const std::string home = EnvironmentVariable("HOME").value_or("/tmp");
  return JoinPath(EnvironmentVariable("XDG_CACHE_HOME").value_or(JoinPath(home, ".cache")),
                  "lockstep/checkpoints");
}

std::string WithoutLastSlash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

// Which checkpoint of which place a URL names.
struct Named {
  std::string place;
  std::string name;  // empty: `best` says which
  bool best;
};

Named Resolve(const std::string& url, bool best) {
  const std::string last = BaseName(url), parent = ParentPath(url);
  if (last == "best" || last == "latest") return {parent, "", last == "best"};
  if (BaseName(parent) == "checkpoints") return {ParentPath(parent), last, best};
  return {url, "", best};
}

std::vector<CheckpointManifest> ManifestsOf(const std::vector<RemoteCheckpoint>& checkpoints) {
  std::vector<CheckpointManifest> manifests;
  for (const RemoteCheckpoint& c : checkpoints) manifests.push_back(c.manifest);
  return manifests;
}

RemoteCheckpoint Find(RemoteCheckpoints& remote, const Named& named, const std::string& url) {
  const std::vector<RemoteCheckpoint> all = remote.List();
  size_t i = 0;
  if (!named.name.empty()) {
    i = std::ranges::find(all, named.name, &RemoteCheckpoint::name) - all.begin();
  } else if (named.best) {
    i = BestOf(ManifestsOf(all)).value_or(0);
  }
  if (i < all.size()) return all[i];
  std::string names;
  for (const RemoteCheckpoint& c : all) names += StrCat(names.empty() ? "" : ", ", c.name);
  throw InputError(StrCat(url, ": there is no complete checkpoint there. ",
                          names.empty() ? "Give what a run had as checkpoint.mirror"
                                        : StrCat(named.place, "/checkpoints has ", names)));
}

// The folder of the cache with this checkpoint, which is fetched if it is not there.
std::string Cached(RemoteCheckpoints& remote, const RemoteCheckpoint& checkpoint,
                   const std::string& url) {
  const std::string folder = JoinPath(CacheFolder(), Sha256Of(checkpoint.done).substr(0, 16));
  MakeDirectories(folder);
  const FileLock lock(JoinPath(folder, ".lock"), "fetching a checkpoint", kFetchPatience);
  if (lock.state() == FileLock::State::kBusy) {
    throw IoError(StrCat("another process holds ", folder, "/.lock: it has been fetching ", url,
                         " for hours"));
  }
  CheckpointStore store(folder);
  store.CleanUp();
  const std::string path = JoinPath(folder, "checkpoints/" + checkpoint.name);
  try {
    if (IsDirectory(path)) return CheckpointStore::Verify(path).path;
  } catch (const InputError&) {  // damaged
    RemoveTree(path);
  }
  std::cerr << StrCat("fetching ", url, " (step ", checkpoint.manifest.step, ", ",
                      (checkpoint.bytes() >> 20) + 1, " MiB) into ", path)
            << std::endl;
  return store
      .Adopt(checkpoint.manifest.step,
             [&](const std::string& to) { remote.Download(checkpoint, to); })
      .path;
}

// The newest checkpoint in the run folder that has all of its files, unverified.
std::optional<CheckpointManifest> NewestHere(const CheckpointStore& store) {
  for (const Checkpoint& c : store.List()) {
    const std::string done = JoinPath(c.path, kManifestName);
    try {
      CheckpointManifest manifest = ParseManifest(ReadFile(done), done);
      CheckFiles(c.path, manifest, /*hashes=*/false);
      return manifest;
    } catch (const InputError&) {  // damaged
    }
  }
  return std::nullopt;
}

void CopyRecord(ObjectStore& store, const char* name, const std::string& out_dir) {
  std::string text;
  const bool there = store.Get(name, [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  if (there) WriteFileAtomically(JoinPath(out_dir, name), text);
}

}  // namespace

std::string FetchCheckpoint(const std::string& given, bool best) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, bool>, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& path = known[{given, best}];
  if (!path.empty()) return path;
  const std::string url = WithoutLastSlash(given);
  const Named named = Resolve(url, best);
  const auto store = OpenStore(named.place);
  RemoteCheckpoints remote(*store);
  path = Cached(remote, Find(remote, named, url), url);
  return path;
}

std::optional<int64_t> CopyFromMirror(const MirrorStart& start) {
  namespace fs = std::filesystem;
  if (!IsRemote(start.place) &&
      fs::weakly_canonical(start.place) == fs::weakly_canonical(start.out_dir)) {
    throw InputError(StrCat("checkpoint.mirror=", start.place,
                            " is out_dir itself: name another place, or leave it out"));
  }
  const auto place = OpenStore(start.place, start.store);
  CheckWritable(*place);
  RemoteCheckpoints remote(*place);
  CheckpointStore store(start.out_dir, start.keeps);
  const auto copy = [&](const RemoteCheckpoint& c) {
    return store.Adopt(c.manifest.step,
                       [&](const std::string& folder) { remote.Download(c, folder); });
  };
  // Whether f succeeds with a checkpoint that is as it was written.
  const auto is_whole = [&](const auto& f) {
    try {
      f();
      return true;
    } catch (const InputError& e) {
      start.keeps.warn(StrCat("a checkpoint at ", start.place, " is passed over: ", e.what()));
      return false;
    }
  };
  const auto here = NewestHere(store);
  const std::vector<RemoteCheckpoint> all = remote.List();
  for (const RemoteCheckpoint& newest : all) {
    TrainerState state;
    if (!is_whole([&] {
          state = ParseTrainerState(remote.ReadFileOf(newest, kStateFile),
                                    StrCat(start.place, "/", newest.name, "/", kStateFile));
        })) {
      continue;
    }
    if (!start.check(state, !here || SavedLater(newest.manifest, *here))) return std::nullopt;
    const std::vector<bool> kept = Retained(ManifestsOf(all), /*keep=*/1, start.keeps.keep_best);
    for (size_t i = 1; i < all.size(); ++i) {
      if (kept[i] && all[i].name != newest.name) is_whole([&] { copy(all[i]); });
    }
    for (const char* name : kRunRecords) CopyRecord(*place, name, start.out_dir);
    if (is_whole([&] { store.Conclude(copy(newest)); })) return newest.manifest.step;
  }
  return std::nullopt;
}

}  // namespace lockstep::models
