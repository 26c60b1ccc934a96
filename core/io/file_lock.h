// A lock on a file, by which processes keep out of each other's way.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace lockstep {

// Holds the file for this object alone, until it is destroyed or its process ends, however it does:
// the system releases it. Other programs may still read and write the file.
//
// It is an "open file description" lock of fcntl(2), for three reasons: unlike flock(2), NFS
// servers see it as what their own processes have, so that machines and server exclude each other
// (flock is translated on the clients only); unlike the POSIX locks of fcntl(2), it also keeps two
// objects of one process apart; and it does not end when some other code closes the same file.
// After a machine has died, an NFS server keeps its locks until their lease ends, usually 90 s.
class FileLock {
 public:
  enum class State {
    kHeld,
    kBusy,         // another has it
    kUnsupported,  // this file system has no locks
  };

  // Makes the file if it is missing, tries for `patience` to lock it, and then writes `note` into
  // it, for those who find it busy. The file stays: removing it would let two hold what has the
  // same name. IoError where it cannot be made.
  FileLock(const std::string& path, std::string_view note, std::chrono::milliseconds patience);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  State state() const { return state_; }
  // kBusy: the note of the one who has it; empty if it is not to be read. kUnsupported: why.
  const std::string& why() const { return why_; }

 private:
  int fd_ = -1;
  State state_ = State::kBusy;
  std::string why_;
};

}  // namespace lockstep
