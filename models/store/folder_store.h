// A folder, such as one of a file server.
#pragma once

#include <string>
#include <vector>

#include "models/store/object_store.h"

namespace lockstep::models {

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

}  // namespace lockstep::models
