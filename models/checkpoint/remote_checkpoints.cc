#include "models/checkpoint/remote_checkpoints.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/mapped_file.h"
#include "core/io/sha256.h"

namespace lockstep::models {
namespace {

constexpr std::string_view kFolder = "checkpoints/";

// The names in the folders of checkpoints, with what is in each.
std::map<std::string, std::set<std::string>> FilesOf(ObjectStore& store) {
  std::map<std::string, std::set<std::string>> files;
  for (const ObjectStore::Object& object : store.List(std::string(kFolder))) {
    const std::string rest = object.name.substr(kFolder.size());
    const size_t slash = rest.find('/');
    if (slash == rest.npos || !rest.starts_with("step-")) continue;
    files[rest.substr(0, slash)].insert(rest.substr(slash + 1));
  }
  return files;
}

}  // namespace

int64_t RemoteCheckpoint::bytes() const {
  int64_t sum = 0;
  for (const CheckpointManifest::File& file : manifest.files) sum += file.bytes;
  return sum;
}

std::string RemoteCheckpoints::NameOf(const std::string& checkpoint,
                                      const std::string& file) const {
  return StrCat(kFolder, checkpoint, "/", file);
}

std::optional<std::string> RemoteCheckpoints::Read(const std::string& name) {
  std::string text;
  const bool there = store_.Get(name, [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return there ? std::optional(text) : std::nullopt;
}

std::optional<std::string> RemoteCheckpoints::Sha256Of(const std::string& name) {
  Sha256 hash;
  const bool there = store_.Get(name, [&](auto bytes) { hash.Update(bytes); });
  return there ? std::optional(hash.HexDigest()) : std::nullopt;
}

std::vector<RemoteCheckpoint> RemoteCheckpoints::List() {
  std::vector<RemoteCheckpoint> all;
  for (const auto& [name, files] : FilesOf(store_)) {
    if (!files.contains(kManifestName)) continue;
    const std::string done = NameOf(name, kManifestName);
    const auto text = Read(done);
    if (!text) continue;  // it was removed meanwhile
    all.push_back({name, ParseManifest(*text, StrCat(store_.place(), "/", done)), *text});
  }
  std::ranges::sort(all, SavedLater, &RemoteCheckpoint::manifest);
  return all;
}

std::string RemoteCheckpoints::ReadFileOf(const RemoteCheckpoint& checkpoint,
                                          const std::string& file) {
  const std::string name = NameOf(checkpoint.name, file);
  const auto entry =
      std::ranges::find(checkpoint.manifest.files, file, &CheckpointManifest::File::name);
  const auto text = Read(name);
  if (!text || entry == checkpoint.manifest.files.end()) {
    throw InputError(StrCat(store_.place(), "/", name, " is missing"));
  }
  if (lockstep::Sha256Of(*text) != entry->sha256) {
    throw InputError(StrCat(store_.place(), "/", name,
                            " is corrupted: its SHA-256 differs from the one in DONE"));
  }
  return *text;
}

void RemoteCheckpoints::Copy(const std::string& path, const std::string& name,
                             const std::string& sha256) {
  const MappedFile file(path);
  for (int attempt = 0; attempt < 2; ++attempt) {
    store_.Put(name, file.bytes());
    if (Sha256Of(name) == sha256) return;
  }
  throw IoError(StrCat(store_.place(), "/", name, ": reading it back gives other bytes than the ",
                       "run has written into ", path));
}

void RemoteCheckpoints::Upload(const std::string& folder) {
  const std::string checkpoint = BaseName(folder), done = JoinPath(folder, kManifestName);
  const std::string text = lockstep::ReadFile(done);
  const std::string remote_done = NameOf(checkpoint, kManifestName);
  std::set<std::pair<std::string, std::string>> unchanged;  // names and hashes
  if (const auto before = Read(remote_done)) {
    if (*before == text) return;
    store_.Remove(remote_done);
    for (const auto& file : ParseManifest(*before, remote_done).files) {
      unchanged.emplace(file.name, file.sha256);
    }
  }
  for (const CheckpointManifest::File& file : ParseManifest(text, done).files) {
    if (unchanged.contains({file.name, file.sha256})) continue;
    Copy(JoinPath(folder, file.name), NameOf(checkpoint, file.name), file.sha256);
  }
  Copy(done, remote_done, lockstep::Sha256Of(text));
}

void RemoteCheckpoints::Download(const RemoteCheckpoint& checkpoint, const std::string& folder) {
  for (const CheckpointManifest::File& file : checkpoint.manifest.files) {
    FileWriter out(JoinPath(folder, file.name), {.sha256 = true});
    out.ExpectBytes(file.bytes);
    const std::string name = NameOf(checkpoint.name, file.name);
    if (!store_.Get(name, [&](std::span<const std::byte> bytes) { out.Write(bytes); })) {
      throw InputError(StrCat(store_.place(), "/", name, " is missing"));
    }
    out.Sync();
    out.Close();
    if (out.Sha256Hex() == file.sha256) continue;
    throw InputError(StrCat(store_.place(), "/", name,
                            " is corrupted: its SHA-256 differs from the one in DONE"));
  }
  WriteFileAtomically(JoinPath(folder, kManifestName), checkpoint.done);
}

void RemoteCheckpoints::RemoveOld(int64_t keep, bool keep_best) {
  const std::vector<RemoteCheckpoint> all = List();
  std::vector<CheckpointManifest> manifests;
  for (const RemoteCheckpoint& c : all) manifests.push_back(c.manifest);
  const std::vector<bool> retained = Retained(manifests, keep, keep_best);
  std::set<std::string> kept;
  for (size_t i = 0; i < all.size(); ++i) {
    if (retained[i]) kept.insert(all[i].name);
  }
  for (const auto& [name, files] : FilesOf(store_)) {
    if (kept.contains(name)) continue;
    store_.Remove(NameOf(name, kManifestName));
    for (const std::string& file : files) store_.Remove(NameOf(name, file));
  }
}

}  // namespace lockstep::models
