// Keeps the last calls of a process's groups, and writes them to a file when a group fails.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "dist/flight/flight_record.h"

namespace lockstep::dist {

// Passed to groups by GroupOptions::recorder and shared with their duplicates. When a group fails,
// a thread of its own writes the record at once, whatever the rest of the process is doing; the
// handler of the exception that ends the process writes it again, with the exception's text. Where
// nobody catches that exception, std::terminate does so, before the handler that was set when the
// process made its first recorder. A disk that hangs holds up neither the groups nor, for longer
// than kPatience in all, the end of the process. Thread-safe.
class FlightRecorder {
 public:
  static constexpr size_t kDepth = 64;   // calls of each group
  static constexpr size_t kGroups = 32;  // the most recently used ones
  static constexpr std::chrono::seconds kPatience{5};

  // Writes to folder/rank-N.json, and creates the folder just before if its parent exists. Writes
  // nothing while the folder is "".
  FlightRecorder(std::string folder, int rank, int ranks);
  // Waits until the record is written, for at most kPatience.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  void SetFolder(const std::string& folder);

  // See FlightRecord::meeting.
  void SetMeeting(const std::string& meeting);

  void Submit(const std::string& group, const Collective& call, const std::string& purpose);
  void Begin(const std::string& group, const Collective& call);
  void End(const std::string& group, const Collective& call);
  // Records a group's failure and has the file written, unless the group's failure is known
  // already; returns at once.
  void Fail(const std::string& group, const Failure& failure) noexcept;
  // The same, and waits for it as the destructor does; `error` is the text of the exception that
  // ends this rank.
  void Write(const std::string& error) noexcept;

 private:
  void ForgetOldGroup(const std::string& other_than);
  FlightCall* Find(const std::string& group, const Collective& call);
  void StartWriting() noexcept;
  bool WaitForWriter();

  // What the thread that writes has to do. It may outlive the recorder.
  struct Writing {
    std::mutex mutex;
    std::condition_variable changed;
    std::string folder, name;
    std::optional<std::string> text;  // to be written
    bool busy = false;
    std::chrono::steady_clock::time_point began;  // to write a text
    bool warned = false;                          // that the disk hangs
    void Run();
  };
  const std::shared_ptr<Writing> writing_ = std::make_shared<Writing>();
  std::thread writer_;  // joinable: it runs, or has ended

  std::mutex mutex_;  // of all but writing_; never held while the disk is waited for
  std::string folder_;
  FlightRecord record_;
  std::map<std::string, std::deque<FlightCall>> calls_;
};

}  // namespace lockstep::dist
