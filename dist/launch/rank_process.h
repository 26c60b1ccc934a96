// A rank that the launcher has started.
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

// Forwards what arrives through a pipe: whole lines, with a prefix, to a stream of this process,
// and all bytes to a file. A progress bar that ends in a carriage return is shown at once, as a
// line that the next one replaces; lines longer than kLongest are split.
class LineRelay {
 public:
  // `file` may be null.
  LineRelay(FileDescriptor pipe, std::string prefix, std::FILE* to, std::FILE* file);

  int fd() const { return pipe_.fd(); }  // -1 at the end
  // Forwards part of what has arrived, without waiting: a rank that writes endlessly must not keep
  // the launcher from handling signals.
  void Read();
  // Forwards all that has arrived, including an incomplete line.
  void Finish();
  const std::deque<std::string>& last_lines() const { return last_; }
  // Whether nobody reads the stream any more.
  bool is_closed() const { return closed_; }

 private:
  static constexpr size_t kLongest = 65536;  // bytes

  bool ReadSome();
  void Flush();
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
  bool closed_ = false;
  bool after_return_ = false;  // the last forwarded line may be replaced
  std::deque<std::string> last_;
};

// Whether the process is stopped by a signal, such as SIGSTOP.
bool IsSuspended(pid_t pid);

class RankProcess {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::vector<std::string> command;
    std::map<std::string, std::string> environment{};  // added to this process's
    int rank = 0;
    std::string log_folder;        // this rank's; must exist; may be ""
    bool inherits_stdout = false;  // what it writes there is not forwarded
    bool is_member = false;        // of an elastic run: has a connection to the launcher
  };
  // The environment variable with the descriptor to which the rank's TellLauncher writes.
  static constexpr char kReportVariable[] = "LOCKSTEP_LAUNCHER_FD";
  // That with a member's end of its connection.
  static constexpr char kMemberVariable[] = "LOCKSTEP_MEMBER_FD";

  // Starts the rank in its own process group. Throws InputError if the program cannot be run.
  explicit RankProcess(const Options& options);
  // Kills the rank if it still runs.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return options_.rank; }
  pid_t pid() const { return pid_; }
  bool running() const { return !status_; }
  LineRelay& out() { return *out_; }
  LineRelay& err() { return *err_; }
  const LineRelay& err() const { return *err_; }
  // The launcher's end of a member's connection; does not block.
  const FileDescriptor& member() const { return member_; }

  // Signals the process and those it has started.
  void Signal(int number) const;
  // Checks whether it has ended.
  void Reap();

  // Only after it has ended:
  Clock::time_point ended() const { return ended_; }
  bool failed() const { return status_ && *status_ != 0; }
  int exit_code() const;  // 128 + the signal if killed, as in shells
  bool signaled() const;
  // Whether it ended by itself after a signal that asks for it, as its exit code says.
  bool stopped() const;
  // "was killed by signal 9 (Killed)", "ended with exit code 1"
  std::string Ending() const;
  // The text that it reported by TellLauncher, or "".
  const std::string& message() const { return message_; }
  // Whether it reported that another rank's failure was the cause.
  bool is_consequence() const { return consequence_; }
  // Whether it reported an InputError, or ended with the exit code of a wrong command line.
  bool is_usage_error() const { return input_error_ || exit_code() == 2; }

 private:
  void ReadReport();

  const Options options_;
  pid_t pid_ = -1;
  std::unique_ptr<LineRelay> out_, err_;
  FileDescriptor report_, member_;
  std::optional<int> status_;
  Clock::time_point ended_;
  std::string message_;
  bool consequence_ = false, input_error_ = false;
};

}  // namespace lockstep::dist
