// Keeps the last calls of a process's groups, and writes them to a file when one of them fails.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dist/control/flight_record.h"

namespace lockstep::dist {

// Given to groups by GroupOptions::recorder; their duplicates have the same. A group that fails
// writes the record at once, whatever the rest of the process is doing; whoever catches the
// exception that ends the process writes it again, with what it says. Thread-safe.
class FlightRecorder {
 public:
  static constexpr size_t kDepth = 64;   // calls of each group
  static constexpr size_t kGroups = 32;  // those that have called something last

  // Writes to folder/rank-N.json; the folder is made when the time comes, if its parent exists.
  // Nothing is written while the folder is "".
  FlightRecorder(std::string folder, int rank, int ranks);

  void SetFolder(const std::string& folder);

  // See FlightRecord::meeting.
  void SetMeeting(const std::string& meeting);

  void Submit(const std::string& group, const Collective& call, const std::string& purpose);
  void Begin(const std::string& group, const Collective& call);
  void End(const std::string& group, const Collective& call);
  // Of a group that has failed. Writes, unless it is known.
  void Fail(const std::string& group, const Failure& failure) noexcept;
  // Writes; `error` is the exception that ends this rank.
  void Write(const std::string& error) noexcept;

 private:
  void ForgetOldGroup(const std::string& other_than);
  FlightCall* Find(const std::string& group, const Collective& call);
  void WriteLocked() noexcept;

  std::mutex mutex_;
  std::string folder_;
  FlightRecord record_;
  std::map<std::string, std::deque<FlightCall>> calls_;
};

}  // namespace lockstep::dist
