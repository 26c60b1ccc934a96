// A file in which rank 0 tells its user's other processes where it is, and a secret.
#pragma once

#include <string>

#include "dist/control/control_plane.h"

namespace lockstep::dist {

// Only its user can read the file. For ranks that were given no secret, or no port.
class RootFile {
 public:
  // Replaces what an earlier run has left there. Throws ConnectionError.
  RootFile(std::string path, const RootAddress& root);
  // Removes the file, if it still is the one that this object wrote.
  ~RootFile();
  RootFile(const RootFile&) = delete;
  RootFile& operator=(const RootFile&) = delete;

  // Throws ConnectionError if it is not there yet, is no regular file, belongs to somebody else, or
  // can be read by others. Does not wait.
  static RootAddress Read(const std::string& path);
  // Where rank 0 puts it if it listens on that port of the loopback device.
  static std::string PathOf(int port);

 private:
  const std::string path_;
  FileDescriptor file_;  // kept open, so that no other file gets its inode number
};

}  // namespace lockstep::dist
