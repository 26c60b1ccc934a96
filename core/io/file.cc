#include "core/io/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/io/fault.h"

namespace lockstep {
namespace {

// Runs a system call that changes the file system, through the fault injector; retries after EINTR.
// Returns its result, which is negative, with errno set, on failure.
template <class Call>
int64_t Disturbable(FileOp op, const std::string& path, const std::string& target, size_t bytes,
                    const Call& call) {
  for (;;) {
    FaultInjector::Verdict verdict;
    if (FaultInjector* injector = FaultInjector::Current()) {
      verdict = injector->Before(op, path, target, bytes);
    }
    std::this_thread::sleep_for(verdict.delay);
    int64_t result = -1;
    if (verdict.error != 0) {
      errno = verdict.error;
    } else {
      result = call(std::min(bytes, verdict.max_bytes));
    }
    if (verdict.kill_after) FaultInjector::KillThisProcess();
    if (result >= 0 || errno != EINTR) return result;
  }
}

template <class Call>
int64_t Disturbable(FileOp op, const std::string& path, const Call& call) {
  return Disturbable(op, path, "", 0, [&](size_t) { return call(); });
}

// open(2), retried after EINTR; folders need O_DIRECTORY. Negative, with errno set, on failure.
int OpenAgain(const std::string& path, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

void RemoveOne(const std::string& path, bool folder) {
  const int64_t result = Disturbable(
      FileOp::kRemove, path, [&] { return folder ? rmdir(path.c_str()) : unlink(path.c_str()); });
  if (result < 0 && errno != ENOENT) ThrowIoError("remove", path, errno);
}

// For error paths: what cannot be removed stays.
void RemoveQuietly(const std::string& path) {
  try {
    RemoveOne(path, /*folder=*/false);
  } catch (const IoError&) {
  }
}

// A program that was started with a closed standard stream (`>&-`) would open a file of its own in
// its place, and then print into it.
[[gnu::constructor]] void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      [[maybe_unused]] const int null =
          open("/dev/null", O_RDWR);  // the lowest number that is free
    }
  }
}

}  // namespace

// ---- Reading ----

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

FileDescriptor OpenForReading(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int fd = OpenAgain(path, O_RDONLY | O_NONBLOCK);
  if (fd < 0) ThrowIoError("open", path, errno);
  struct stat info;
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    ThrowIoError("examine", path, error);
  }
  FileDescriptor file(fd, info.st_size);
  if (S_ISDIR(info.st_mode)) ThrowIoError("read", path, EISDIR);
  if (!S_ISREG(info.st_mode)) {
    throw IoError(
        StrCat("cannot read ", path, ": it is a pipe, socket or device. Give a regular file."));
  }
  return file;
}

void ReadFileInPieces(const std::string& path,
                      const std::function<void(std::span<const std::byte>)>& sink) {
  const FileDescriptor file = OpenForReading(path);
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t got = read(file.fd(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowIoError("read", path, errno);
    if (got == 0) return;
    sink({buffer.data(), static_cast<size_t>(got)});
  }
}

std::string ReadFile(const std::string& path, int64_t max_bytes) {
  std::string contents;
  ReadFileInPieces(path, [&](std::span<const std::byte> piece) {
    contents.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    if (static_cast<int64_t>(contents.size()) > max_bytes) {
      throw IoError(StrCat("cannot read ", path, ": it is larger than the ", max_bytes,
                           " bytes allowed here. Check that it is the right file."));
    }
  });
  return contents;
}

// ---- Writing ----

FileWriter::FileWriter(std::string path, Options options)
    : path_(std::move(path)), options_(options) {
  int flags = O_WRONLY | O_CREAT;
  switch (options_.mode) {
    case Options::Mode::kTruncate:
      flags |= O_TRUNC;
      break;
    case Options::Mode::kAppend:
      flags |= O_APPEND;
      break;
    case Options::Mode::kCreateNew:
      flags |= O_EXCL;
      break;
  }
  fd_ = static_cast<int>(Disturbable(FileOp::kCreate, path_,
                                     [&] { return open(path_.c_str(), flags | O_CLOEXEC, 0666); }));
  if (fd_ < 0) ThrowIoError("create", path_, errno);
  buffer_.reserve(std::max<size_t>(options_.buffer_bytes, 1));
  if (options_.sha256) hash_.emplace();
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) close(fd_);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(other.path_),
      options_(other.options_),
      fd_(std::exchange(other.fd_, -1)),
      failed_(other.failed_),
      bytes_(other.bytes_),
      flushed_bytes_(other.flushed_bytes_),
      expected_bytes_(other.expected_bytes_),
      buffer_(std::move(other.buffer_)),
      hash_(std::move(other.hash_)) {}

void FileWriter::Fail(std::string_view operation, int error, int64_t bytes_needed) {
  failed_ = true;
  ThrowIoError(operation, path_, error, bytes_needed);
}

void FileWriter::RequireUsable() const {
  if (failed_) throw IoError(StrCat("cannot write ", path_, ": an earlier write to it failed"));
  LS_INVARIANT(fd_ >= 0, "use of the closed file ", path_);
}

void FileWriter::Write(std::span<const std::byte> bytes) {
  RequireUsable();
  if (hash_) hash_->Update(bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
  if (bytes.size() >= buffer_.capacity()) {  // no gain in copying
    Flush();
    WriteThrough(bytes);
    return;
  }
  if (buffer_.size() + bytes.size() > buffer_.capacity()) Flush();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void FileWriter::Write(std::string_view text) {
  Write(std::as_bytes(std::span(text.data(), text.size())));
}

void FileWriter::WriteThrough(std::span<const std::byte> bytes) {
  constexpr size_t kMaxPiece = size_t{64} << 20;
  constexpr int64_t kWriteBackBytes = int64_t{8} << 20;
  const int64_t write_backs = flushed_bytes_ / kWriteBackBytes;
  while (!bytes.empty()) {
    const size_t piece = std::min(bytes.size(), kMaxPiece);
    const int64_t written = Disturbable(FileOp::kWrite, path_, "", piece, [&](size_t size) {
      return write(fd_, bytes.data(), size);
    });
    if (written < 0) {
      Fail("write", errno, std::max<int64_t>(bytes.size(), expected_bytes_ - flushed_bytes_));
    }
    flushed_bytes_ += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  // The disk begins now, so that Sync finds little left to wait for. It is only a hint: Sync meets
  // any failure.
  if (flushed_bytes_ / kWriteBackBytes > write_backs) {
    sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
  }
}

void FileWriter::Flush() {
  RequireUsable();
  WriteThrough(buffer_);
  buffer_.clear();
}

void FileWriter::Sync() {
  Flush();
  // Never retried after a failure: the kernel may have dropped the pages that it could not write.
  if (Disturbable(FileOp::kSync, path_, [&] { return fsync(fd_); }) < 0) Fail("sync", errno);
}

void FileWriter::Close() {
  if (fd_ < 0) return;
  Flush();
  // On Linux the descriptor is gone even if close fails. EINTR is not a failure.
  if (close(std::exchange(fd_, -1)) != 0 && errno != EINTR) Fail("close", errno);
}

std::string FileWriter::Sha256Hex() const {
  LS_INVARIANT(hash_.has_value(), "the writer of ", path_, " was opened without sha256");
  return hash_->HexDigest();
}

void ReplaceFile(const std::string& path, const std::function<void(FileWriter&)>& write) {
  const std::string temporary = TemporaryName(path);
  try {
    FileWriter file(temporary);
    write(file);
    file.Sync();
    file.Close();
    RenameDurably(temporary, path);
  } catch (...) {
    RemoveQuietly(temporary);
    throw;
  }
}

void WriteFileAtomically(const std::string& path, std::string_view contents) {
  ReplaceFile(path, [&](FileWriter& file) { file.Write(contents); });
}

// ---- Folders ----

void RenameDurably(const std::string& from, const std::string& to) {
  const int64_t result = Disturbable(FileOp::kRename, from, to, 0,
                                     [&](size_t) { return rename(from.c_str(), to.c_str()); });
  if (result < 0) ThrowIoError("rename", StrCat(from, " to ", to), errno);
  SyncDirectory(ParentPath(to));
  if (ParentPath(from) != ParentPath(to)) SyncDirectory(ParentPath(from));
}

void SyncDirectory(const std::string& path) {
  const int fd = OpenAgain(path, O_RDONLY | O_DIRECTORY);
  if (fd < 0) ThrowIoError("open", path, errno);
  const int64_t result = Disturbable(FileOp::kSync, path, [&] { return fsync(fd); });
  const int error = errno;
  close(fd);
  // Some network and user-space file systems cannot sync folders, and need not.
  if (result < 0 && error != EINVAL && error != ENOTSUP) ThrowIoError("sync", path, error);
}

void MakeDirectories(const std::string& path) {
  if (path.empty()) ThrowIoError("create the folder", path, ENOENT);
  if (IsDirectory(path)) return;
  const std::string parent = ParentPath(path);
  if (parent != path) MakeDirectories(parent);
  const int64_t result =
      Disturbable(FileOp::kMakeDirectory, path, [&] { return mkdir(path.c_str(), 0777); });
  if (result < 0) {
    const int error = errno;
    if (error == EEXIST && IsDirectory(path)) return;  // another process was quicker
    std::error_code no_link;
    const std::filesystem::path target = std::filesystem::read_symlink(path, no_link);
    if (error == EEXIST && !no_link && !std::filesystem::exists(path, no_link)) {
      throw IoError(StrCat("cannot create the folder ", path, ": it is a link to ", target.string(),
                           ", which is not there. Make that folder, or remove the link."));
    }
    ThrowIoError("create the folder", path, error == EEXIST ? ENOTDIR : error);
  }
  SyncDirectory(parent);
}

void RequireWritableDirectory(const std::string& path) {
  MakeDirectories(path);
  const std::string probe = JoinPath(path, ".lockstep-write-test.tmp");
  try {
    FileWriter file(probe);
    file.Write("Lockstep checks that it can write here.\n");
    file.Sync();
    file.Close();
  } catch (const IoError&) {
    RemoveQuietly(probe);
    throw;
  }
  RemoveTree(probe);
}

void RemoveTree(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return;
    ThrowIoError("remove", path, errno);
  }
  const bool folder = S_ISDIR(info.st_mode);
  if (folder) {
    for (const std::string& name : ListDirectory(path)) RemoveTree(JoinPath(path, name));
  }
  RemoveOne(path, folder);
}

void ReplaceSymlink(const std::string& target, const std::string& link) {
  const std::string temporary = TemporaryName(link);
  RemoveOne(temporary, /*folder=*/false);
  const int64_t result = Disturbable(FileOp::kSymlink, temporary, target, 0, [&](size_t) {
    return symlink(target.c_str(), temporary.c_str());
  });
  if (result < 0) ThrowIoError("create the symbolic link", temporary, errno);
  try {
    RenameDurably(temporary, link);
  } catch (const IoError&) {
    RemoveQuietly(temporary);
    throw;
  }
}

std::vector<std::string> ListDirectory(const std::string& path) {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) ThrowIoError("list", path, errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  const int error = errno;
  closedir(folder);
  if (error != 0) ThrowIoError("list", path, error);
  std::sort(names.begin(), names.end());
  return names;
}

namespace {
// Whether a failed look at a path says that nothing is there, and not that it cannot be seen.
bool SaysAbsent(int error) {
  return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG;  // nothing has such a name
}
}  // namespace

bool PathExists(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) return true;
  if (!SaysAbsent(errno)) ThrowIoError("look at", path, errno);
  return false;
}

FileIdentity IdentityOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) ThrowIoError("look at", path, errno);
  return {info.st_dev, info.st_ino};
}

bool IsDirectory(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode);
  if (!SaysAbsent(errno)) ThrowIoError("look at", path, errno);
  return false;
}

int64_t FileSize(const std::string& path) { return OpenForReading(path).size(); }

// ---- Paths ----

std::string JoinPath(std::string_view a, std::string_view b) {
  if (a.empty() || b.starts_with('/')) return std::string(b);
  return StrCat(a, a.ends_with('/') ? "" : "/", b);
}

namespace {
std::string_view WithoutTrailingSlashes(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}
}  // namespace

std::string ParentPath(std::string_view path) {
  path = WithoutTrailingSlashes(path);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : WithoutTrailingSlashes(path.substr(0, slash)));
}

std::string BaseName(std::string_view path) {
  path = WithoutTrailingSlashes(path);
  return std::string(path.substr(path.rfind('/') + 1));
}

std::string TemporaryName(const std::string& path) {
  return JoinPath(ParentPath(path), StrCat(".", BaseName(path), ".tmp"));
}

}  // namespace lockstep
