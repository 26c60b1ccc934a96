// A folder for the files of a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "core/io/file.h"

namespace lockstep::test {

// New, and removed at the end. In memory if possible, since fsync makes such tests slow on a disk.
class TempFolder {
 public:
  // `name` begins its name.
  explicit TempFolder(const std::string& name)
      : path_(JoinPath(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir(),
                       name + ".XXXXXX")) {
    if (mkdtemp(path_.data()) == nullptr) throw IoError("cannot make a folder like " + path_);
  }
  ~TempFolder() { RemoveTree(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return JoinPath(path_, name); }

 private:
  std::string path_;
};

}  // namespace lockstep::test
