// Keeps the last calls of a process's groups, and writes them to a file when a group fails.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dist/control/flight_record.h"

namespace lockstep::dist {

// Passed to groups by GroupOptions::recorder and shared with their duplicates. A group that fails
// writes the record at once, whatever the rest of the process is doing; the handler of the
// exception that ends the process writes it again, with the exception's text. Thread-safe.
class FlightRecorder {
 public:
  static constexpr size_t kDepth = 64;   // calls of each group
  static constexpr size_t kGroups = 32;  // the most recently used ones

  // Writes to folder/rank-N.json, and creates the folder just before if its parent exists. Writes
  // nothing while the folder is "".
  FlightRecorder(std::string folder, int rank, int ranks);

  void SetFolder(const std::string& folder);

  // See FlightRecord::meeting.
  void SetMeeting(const std::string& meeting);

  void Submit(const std::string& group, const Collective& call, const std::string& purpose);
  void Begin(const std::string& group, const Collective& call);
  void End(const std::string& group, const Collective& call);
  // Records a group's failure and writes the file, unless the group's failure is known already.
  void Fail(const std::string& group, const Failure& failure) noexcept;
  // Writes the file; `error` is the text of the exception that ends this rank.
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
