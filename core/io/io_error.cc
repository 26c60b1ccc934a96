// What errors of files say.
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/error.h"
#include "core/io/file.h"

namespace lockstep {
namespace {

std::string HintOnFullDisk(const std::string& path, int64_t bytes_needed) {
  struct statvfs info = {};
  std::string place = path, free = "an unknown number of";
  while (statvfs(place.c_str(), &info) != 0 && ParentPath(place) != place) {
    place = ParentPath(place);
  }
  if (info.f_files > 0 && info.f_favail == 0) {
    return "The disk has bytes, but no inodes left: see df -i. Remove some files (any number of "
           "bytes), or choose another folder.";
  }
  if (info.f_frsize > 0) free = StrCat(static_cast<uint64_t>(info.f_bavail) * info.f_frsize);
  return StrCat("The disk is full: ",
                bytes_needed > 0 ? StrCat(bytes_needed, " more bytes are needed, ") : "", free,
                " bytes are free. Free some space or choose another folder.");
}

std::string Hint(int error, const std::string& path, int64_t bytes_needed) {
  switch (error) {
    case ENOSPC:
      return HintOnFullDisk(path, bytes_needed);
    case ENOMEM:
      return "The system has no memory for it, or the process has reached its limit (ulimit -v).";
    case EDQUOT:
      return "Your quota on this file system is used up. Free some space or choose another folder.";
    case EACCES:
    case EPERM:
      return "Check the owner and the permissions (ls -ld) of the file and of its folders, or "
             "choose another path.";
    case EROFS:
      return "The file system is mounted read-only. Choose another folder.";
    case ENOENT:
      return "Check the path: it, or a folder in it, does not exist.";
    case ENOTDIR:
      return "A part of the path that should be a folder is a file.";
    case EISDIR:
      return "The path names a folder, not a file.";
    case EMFILE:
    case ENFILE:
      return "Too many files are open. Raise the limit (ulimit -n).";
    case EIO:
      return "The device reports a failure: see dmesg.";
    case ENOTEMPTY:
      return "The folder is not empty.";
    default:
      return "";
  }
}

// The path with the names under which what is being written will be known: "a/b" of "a/.b.tmp", and
// "checkpoints/step-00000010/x" of "checkpoints/.tmp-step-00000010-123/x".
std::string FinalPath(std::string_view path) {
  constexpr std::string_view kBefore = ".tmp-", kAfter = ".tmp";
  std::string known;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    std::string_view name = path.substr(0, slash);
    if (name.starts_with(kBefore)) {
      name.remove_prefix(kBefore.size());
      // Of a checkpoint, without the writer's number.
      const size_t step = name.find("step-");
      if (step != name.npos) name = name.substr(step, name.find('-', step + 5) - step);
    } else if (name.size() > 1 + kAfter.size() && name.front() == '.' && name.ends_with(kAfter)) {
      name = name.substr(1, name.size() - 1 - kAfter.size());
    }
    known += name;
    if (slash < path.size()) known += '/';
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return known;
}

}  // namespace

void ThrowIoError(std::string_view operation, const std::string& path, int error,
                  int64_t bytes_needed) {
  const char* symbol = strerrorname_np(error);
  const std::string hint = Hint(error, path, bytes_needed);
  throw IoError(StrCat("cannot ", operation, " ", path.empty() ? "\"\"" : FinalPath(path), ": ",
                       std::generic_category().message(error), " (",
                       symbol != nullptr ? symbol : "unknown error", ").", hint.empty() ? "" : " ",
                       hint));
}

}  // namespace lockstep
