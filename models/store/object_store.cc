#include "models/store/object_store.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/io/file.h"
#include "models/store/s3_store.h"

namespace lockstep::models {
namespace {

// The names under which ReplaceFile builds files.
bool IsTemporary(const std::string& path) {
  const std::string name = BaseName(path);
  return name.starts_with('.') && name.ends_with(".tmp");
}

// A folder, such as one of a file server.
class FolderStore : public ObjectStore {
 public:
  FolderStore(const std::string& folder, const StoreOptions& options)
      : ObjectStore(folder), options_(options) {}

  void Put(const std::string& name, std::span<const std::byte> bytes) override;
  bool Get(const std::string& name, const Sink& sink) override;
  std::vector<Object> List(const std::string& prefix) override;
  void Remove(const std::string& name) override;
  void RemoveUnfinished() override;

 private:
  std::vector<Object> ListAll(bool unfinished) const;
  void Moved(int64_t bytes) const;

  const StoreOptions options_;
};

void FolderStore::Moved(int64_t bytes) const {
  if (options_.stop.stop_requested()) throw IoError(StrCat("copying to ", place(), " was stopped"));
  if (options_.moved != nullptr) *options_.moved += bytes;
}

void FolderStore::Put(const std::string& name, std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{4} << 20;
  const std::string path = JoinPath(place(), name);
  MakeDirectories(ParentPath(path));
  ReplaceFile(path, [&](FileWriter& file) {
    file.ExpectBytes(std::ssize(bytes));
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const auto piece = rest.first(std::min(kPiece, rest.size()));
      file.Write(piece);
      Moved(std::ssize(piece));
      rest = rest.subspan(piece.size());
    }
  });
}

bool FolderStore::Get(const std::string& name, const Sink& sink) {
  const std::string path = JoinPath(place(), name);
  if (!PathExists(path)) return false;
  ReadFileInPieces(path, [&](std::span<const std::byte> piece) {
    sink(piece);
    Moved(std::ssize(piece));
  });
  return true;
}

// In the order of names, which is that of S3.
std::vector<ObjectStore::Object> FolderStore::ListAll(bool unfinished) const {
  namespace fs = std::filesystem;
  std::vector<Object> all;
  try {
    if (!IsDirectory(place())) return all;
    for (const auto& entry : fs::recursive_directory_iterator(place())) {
      if (!entry.is_regular_file() || IsTemporary(entry.path().string()) != unfinished) continue;
      all.push_back({entry.path().lexically_relative(place()).string(),
                     static_cast<int64_t>(entry.file_size())});
    }
  } catch (const fs::filesystem_error& e) {
    throw IoError(StrCat("cannot list ", place(), ": ", e.code().message()));
  }
  std::ranges::sort(all, {}, &Object::name);
  return all;
}

std::vector<ObjectStore::Object> FolderStore::List(const std::string& prefix) {
  std::vector<Object> all = ListAll(/*unfinished=*/false);
  std::erase_if(all, [&](const Object& o) { return !o.name.starts_with(prefix); });
  return all;
}

// With the folders that were only there for its name.
void FolderStore::Remove(const std::string& name) {
  RemoveTree(JoinPath(place(), name));
  for (std::string parent = ParentPath(name); parent != "."; parent = ParentPath(parent)) {
    if (rmdir(JoinPath(place(), parent).c_str()) != 0) return;
  }
}

void FolderStore::RemoveUnfinished() {
  for (const Object& object : ListAll(/*unfinished=*/true)) Remove(object.name);
}

}  // namespace

bool IsRemote(std::string_view path) { return path.starts_with("s3://"); }

std::unique_ptr<ObjectStore> OpenStore(const std::string& path, const StoreOptions& options) {
  if (IsRemote(path)) return std::make_unique<S3Store>(path, options);
  return std::make_unique<FolderStore>(path, options);
}

void CheckWritable(ObjectStore& store) {
  constexpr std::string_view kText = "Lockstep looks whether it can write here\n";
  const std::string name = "lockstep-probe";
  store.Put(name, std::as_bytes(std::span(kText)));
  std::string read;
  store.Get(name, [&](std::span<const std::byte> bytes) {
    read.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  if (read != kText) {
    throw IoError(StrCat(store.place(), " does not give back what was written there: it is no ",
                         "place for checkpoints"));
  }
  store.Remove(name);
}

}  // namespace lockstep::models
