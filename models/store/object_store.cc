#include "models/store/object_store.h"

#include "core/error.h"
#include "models/store/folder_store.h"
#include "models/store/s3_store.h"

namespace lockstep::models {

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
