#include "models/checkpoint/held_checkpoint.h"

#include <fcntl.h>

#include <filesystem>
#include <utility>

#include "core/error.h"
#include "models/checkpoint/checkpoint_manifest.h"

namespace lockstep::models {
namespace {

// The folder that a link leads to now.
std::string FollowOnce(const std::string& path) {
  const std::string link = JoinPath(ParentPath(path), BaseName(path));  // without a last slash
  std::error_code none;
  const std::filesystem::path target = std::filesystem::read_symlink(link, none);
  return none ? path : JoinPath(ParentPath(path), target.string());
}

// A lock on the whole file, of the kind of FileLock.
struct flock WholeFile(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

HeldCheckpoint::HeldCheckpoint(const std::string& path) {
  // What the link led to may be removed before it is held, but then the link leads elsewhere.
  for (;;) {
    path_ = FollowOnce(path);
    const std::string done = JoinPath(path_, kManifestName);
    if (!PathExists(done)) {
      if (FollowOnce(path) == path_) return;
      continue;
    }
    try {
      auto file = std::make_shared<FileDescriptor>(OpenForReading(done));
      struct flock lock = WholeFile(F_RDLCK);
      fcntl(file->fd(), F_OFD_SETLK, &lock);  // where there are no locks, nobody holds anything
      if (!PathExists(done)) continue;
      lock_ = std::move(file);
      return;
    } catch (const IoError&) {
      if (FollowOnce(path) == path_) throw;
    }
  }
}

bool IsHeld(const std::string& folder) {
  const std::string done = JoinPath(folder, kManifestName);
  if (!PathExists(done)) return false;
  const FileDescriptor file = OpenForReading(done);
  struct flock lock = WholeFile(F_WRLCK);
  return fcntl(file.fd(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace lockstep::models
