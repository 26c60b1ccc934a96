// Reading a checkpoint beside a trainer that removes old ones.
#pragma once

#include <memory>
#include <string>

#include "core/io/file.h"

namespace lockstep::models {

// The folder behind `path`, a checkpoint or a link to one such as out/latest: it follows the link
// once, and as long as it exists, a trainer that saves more does not remove the folder.
class HeldCheckpoint {
 public:
  explicit HeldCheckpoint(const std::string& path);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::shared_ptr<const FileDescriptor> lock_;  // of its DONE; null if it has none
};

// Whether a HeldCheckpoint of any process has the folder.
bool IsHeld(const std::string& folder);

}  // namespace lockstep::models
