// One rank that the launcher has started.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/control/file_descriptor.h"

namespace lockstep::dist {

// Passes on what comes through a pipe: whole lines, with a prefix, to a stream of this process, and
// everything to a file. A bar that ends in a carriage return is shown at once, as a line that the
// next one replaces; a line that is longer than kLongest is cut into several.
class LineRelay {
 public:
  // `file` may be null.
  LineRelay(FileDescriptor pipe, std::string prefix, std::FILE* to, std::FILE* file);

  int fd() const { return pipe_.fd(); }  // -1 at the end
  // Some of what there is by now, without waiting: whoever writes without end must not keep the
  // launcher from its signals.
  void Read();
  // All that there is, also what has no end of line.
  void Finish();
  const std::deque<std::string>& last_lines() const { return last_; }

 private:
  static constexpr size_t kLongest = 65536;  // bytes

  bool ReadSome();
  void PassOn(bool all);
  void Line(std::string_view line, char end);

  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  FileDescriptor pipe_;
  const std::string prefix_;
  std::FILE* const to_;
  const std::unique_ptr<std::FILE, CloseFile> file_;
  std::string begun_;
  bool after_return_ = false;  // the last line passed on may be replaced
  std::deque<std::string> last_;
};

class RankProcess {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::vector<std::string> command;
    std::map<std::string, std::string> environment;  // added to this process's
    int rank = 0;
    std::string log_folder;  // of this rank; exists, or is empty
  };
  // Names the descriptor on which TellLauncher of that process writes.
  static constexpr char kReportVariable[] = "LOCKSTEP_LAUNCHER_FD";

  // Starts it, in a process group of its own. Throws InputError if the program cannot be run.
  explicit RankProcess(const Options& options);
  // Kills what is left of it.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return options_.rank; }
  pid_t pid() const { return pid_; }
  bool running() const { return !status_; }
  LineRelay& out() { return *out_; }
  LineRelay& err() { return *err_; }
  const LineRelay& err() const { return *err_; }

  // To the process and those that it has started.
  void Signal(int number) const;
  // Looks whether it has ended.
  void Reap();

  // Of one that has ended:
  Clock::time_point ended() const { return ended_; }
  bool failed() const { return status_ && *status_ != 0; }
  int exit_code() const;  // 128 + the signal, as shells have it
  bool signaled() const;
  // "was killed by signal 9 (Killed)", "ended with exit code 1"
  std::string Ending() const;
  // What it told by TellLauncher; empty: nothing.
  const std::string& message() const { return message_; }
  // Whether it said that another rank's failure was the reason.
  bool is_consequence() const { return consequence_; }

 private:
  void ReadReport();

  const Options options_;
  pid_t pid_ = -1;
  std::unique_ptr<LineRelay> out_, err_;
  FileDescriptor report_;
  std::optional<int> status_;
  Clock::time_point ended_;
  std::string message_;
  bool consequence_ = false;
};

}  // namespace lockstep::dist
