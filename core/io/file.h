// Files that survive crashes: everything that Lockstep writes durably goes through here. Linux
// only.
//
// Every failure throws IoError with the operation, the path, the system's reason and, where known,
// the fix. Short writes and EINTR are handled. Tests can inject faults into each operation
// (core/io/fault.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/io/sha256.h"

namespace lockstep {

// Owns a descriptor of a regular file that is open for reading.
class FileDescriptor {
 public:
  FileDescriptor(int fd, int64_t size) : fd_(fd), size_(size) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;

  int fd() const { return fd_; }
  int64_t size() const { return size_; }  // bytes, when it was opened

 private:
  int fd_;
  int64_t size_;
};

// Regular files only: a folder or a pipe is an IoError.
FileDescriptor OpenForReading(const std::string& path);

struct FileWriterOptions {
  enum class Mode { kTruncate, kAppend, kCreateNew };
  Mode mode = Mode::kTruncate;
  bool sha256 = false;  // hash what is written as it is written
  size_t buffer_bytes = size_t{1} << 20;
};

// A buffered writer of one file. Data is in the file only after Flush, and survives a power loss
// only after Sync. The destructor drops what is still buffered: a file is complete only once Close
// has returned. After an error every further call throws.
class FileWriter {
 public:
  using Options = FileWriterOptions;

  explicit FileWriter(std::string path, Options options = {});
  ~FileWriter();
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&&) = delete;

  void Write(std::span<const std::byte> bytes);
  void Write(std::string_view text);
  // Hands the buffer to the system.
  void Flush();
  // Flush and fsync.
  void Sync();
  // Flush and close, without fsync.
  void Close();

  // Sets how many bytes will be written in all, for the message when the disk is full.
  void ExpectBytes(int64_t bytes) { expected_bytes_ = bytes; }

  const std::string& path() const { return path_; }
  // Bytes given to Write.
  int64_t bytes() const { return bytes_; }
  // The hash of the bytes given to Write; needs Options::sha256.
  std::string Sha256Hex() const;

 private:
  void WriteThrough(std::span<const std::byte> bytes);
  [[noreturn]] void Fail(std::string_view operation, int error, int64_t bytes_needed = 0);
  void RequireUsable() const;

  std::string path_;
  Options options_;
  int fd_ = -1;
  bool failed_ = false;
  int64_t bytes_ = 0, flushed_bytes_ = 0, expected_bytes_ = 0;
  std::vector<std::byte> buffer_;
  std::optional<Sha256> hash_;
};

// The contents of a regular file; IoError if it is larger than max_bytes.
std::string ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 32);
void ReadFileInPieces(const std::string& path,
                      const std::function<void(std::span<const std::byte>)>& sink);

// Replaces the file by what `write` writes, so that readers and crashes see the old or the new
// file, never a mixture: temporary file, fsync, rename, fsync of the folder. The temporary file is
// removed if anything throws, `write` included.
void ReplaceFile(const std::string& path, const std::function<void(FileWriter&)>& write);
// The same for contents in memory.
void WriteFileAtomically(const std::string& path, std::string_view contents);
// The identity of the file or folder that a path leads to, whatever it is called. Throws IoError.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  bool operator==(const FileIdentity&) const = default;
};
FileIdentity IdentityOf(const std::string& path);

// Where a file is built that will be renamed to `path`: "a/.b.tmp" of "a/b".
std::string TemporaryName(const std::string& path);

// rename(2), then fsync of the folder(s) concerned. Replaces a file, or an empty folder.
void RenameDurably(const std::string& from, const std::string& to);
// Makes the entries of a folder (creations, renames, removals) survive a power loss.
void SyncDirectory(const std::string& path);
// Creates the folder and its missing parents, durably. Does nothing if it exists.
void MakeDirectories(const std::string& path);
// Checks, by creating, filling and removing a file, that a folder (made if missing) can be written.
void RequireWritableDirectory(const std::string& path);
// Removes a file, a symlink (not its target), or a folder with everything below it. Does nothing if
// there is none.
void RemoveTree(const std::string& path);
// Points the symlink `link` at `target`, atomically and durably. IoError if `link` is a folder.
void ReplaceSymlink(const std::string& target, const std::string& link);

// The names in a folder, without "." and "..", sorted by bytes.
std::vector<std::string> ListDirectory(const std::string& path);
// Does not follow symlinks: a dangling one exists.
bool PathExists(const std::string& path);
// Follows symlinks.
bool IsDirectory(const std::string& path);
int64_t FileSize(const std::string& path);

// "a/b" of "a" and "b"; b when b is absolute or a is empty.
std::string JoinPath(std::string_view a, std::string_view b);
// "a" of "a/b" and of "a/b/", "." of "b", "/" of "/b".
std::string ParentPath(std::string_view path);
// "b" of "a/b" and of "a/b/".
std::string BaseName(std::string_view path);

// For other users of system calls: throws IoError as described above. bytes_needed is part of the
// message when the disk is full.
[[noreturn]] void ThrowIoError(std::string_view operation, const std::string& path, int error,
                               int64_t bytes_needed = 0);

}  // namespace lockstep
