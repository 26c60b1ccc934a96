// A lock on a file, for mutual exclusion between processes.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace lockstep {

// Locks the file exclusively until this object is destroyed or its process ends, in whatever way:
// the system releases the lock. Other programs may still read and write the file.
//
// This is an "open file description" lock of fcntl(2), for three reasons. Unlike flock(2), which is
// translated only on NFS clients, it is the same kind of lock on an NFS server, so that clients and
// server exclude each other. Unlike the POSIX locks of fcntl(2), it also excludes other objects in
// the same process, and it does not end when other code closes the same file. After a machine has
// died, an NFS server keeps its locks until their lease expires, usually 90 s.
class FileLock {
 public:
  enum class State {
    kHeld,
    kBusy,         // someone else holds it
    kUnsupported,  // the file system has no locks
  };

  // Creates the file if it is missing, tries for `patience` to lock it, and then writes `note` into
  // it, for those who find it busy. The file is never removed: two processes could then hold locks
  // on different files of the same name. IoError if it cannot be created.
  FileLock(const std::string& path, std::string_view note, std::chrono::milliseconds patience);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  State state() const { return state_; }
  // kBusy: the holder's note, empty if it cannot be read. kUnsupported: the reason.
  const std::string& why() const { return why_; }

 private:
  int fd_ = -1;
  State state_ = State::kBusy;
  std::string why_;
};

}  // namespace lockstep
