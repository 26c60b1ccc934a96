#include "dist/control/root_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/io/json.h"
#include "core/system/environment.h"

namespace lockstep::dist {
namespace {

constexpr size_t kMaxBytes = 4096;

}  // namespace

RootFile::RootFile(std::string path, const RootAddress& root) : path_(std::move(path)) {
  // Written under another name, so that nobody reads half of it, and opened by nobody else.
  const std::string part = StrCat(path_, ".", getpid());
  unlink(part.c_str());
  file_ = FileDescriptor(
      open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const std::string text =
      Json{{"host", root.host}, {"port", root.port}, {"secret", root.secret}}.dump();
  if (file_.fd() < 0 || write(file_.fd(), text.data(), text.size()) != std::ssize(text) ||
      rename(part.c_str(), path_.c_str()) != 0) {
    const std::string reason = SystemErrorText(errno);
    unlink(part.c_str());
    throw ConnectionError(StrCat("rank 0 cannot write ", path_, ", where the other ranks look for ",
                                 "it: ", reason, "; if another user has a file of this name, set ",
                                 "LOCKSTEP_SECRET to the same value on all ranks (or another ",
                                 "LOCKSTEP_STORE_DIR)"));
  }
}

RootFile::~RootFile() {
  struct stat mine = {}, there = {};
  // A later run may have put its own in this place.
  if (fstat(file_.fd(), &mine) != 0 || lstat(path_.c_str(), &there) != 0) return;
  if (mine.st_dev == there.st_dev && mine.st_ino == there.st_ino) unlink(path_.c_str());
}

RootAddress RootFile::Read(const std::string& path) {
  // Opening a pipe would wait for a writer.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.fd() < 0) {
    throw ConnectionError(StrCat("rank 0 has not written ", path, ": ", SystemErrorText(errno)));
  }
  struct stat info = {};
  fstat(file.fd(), &info);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    throw ConnectionError(
        StrCat(path, " is not a file that only this user can access, so it is not rank 0's; set ",
               "LOCKSTEP_SECRET to the same value on all ranks"));
  }
  std::array<char, kMaxBytes> text;
  const ssize_t bytes = read(file.fd(), text.data(), text.size());
  try {
    const Json j = TryParseJson({text.data(), static_cast<size_t>(std::max<ssize_t>(0, bytes))});
    // It may be that of an earlier run.
    return {j.at("host").get<std::string>(), static_cast<int>(IntegerOf(j.at("port"), 0, 65535)),
            j.at("secret").get<std::string>(), /*uncertain=*/true};
  } catch (const std::exception&) {
    throw ConnectionError(StrCat("rank 0 has not written what ", path, " holds"));
  }
}

std::string RootFile::PathOf(int port) {
  return StrCat(EnvironmentVariable("XDG_RUNTIME_DIR").value_or("/tmp"), "/lockstep-", geteuid(),
                "-", port);
}

}  // namespace lockstep::dist
