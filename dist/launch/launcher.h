// What a launcher needs, whether its ranks end together or one by one.
#pragma once

#include <poll.h>
#include <signal.h>

#include <span>
#include <string>
#include <vector>

#include "dist/control/file_descriptor.h"
#include "dist/control/socket.h"
#include "dist/launch/launch.h"
#include "dist/launch/rank_process.h"

namespace lockstep::dist {

// A line of the launcher's own, on stderr.
void SayAsLauncher(const std::string& line);

// Reserves a port: while this exists no other program gets it, but a rank can listen on it.
class ReservedPort {
 public:
  ReservedPort();
  int port() const { return PortOf(socket_); }

 private:
  const Socket socket_;
};

// While it exists, the signals that a launcher forwards can be polled for.
class LauncherSignals {
 public:
  LauncherSignals();
  ~LauncherSignals();
  LauncherSignals(const LauncherSignals&) = delete;
  LauncherSignals& operator=(const LauncherSignals&) = delete;

  int fd() const { return fd_.fd(); }
  // The next signal to forward, or 0.
  int Next() const;

 private:
  sigset_t before_;
  sighandler_t pipe_before_ = SIG_DFL;
  FileDescriptor fd_;
};

// How many times a user has asked the ranks to end. One who asks a third time no longer wants to
// wait for checkpoints. Signals within a second are one: `timeout` sends one to the launcher and
// one to its group.
class Insistence {
 public:
  // What to send the ranks on this signal; 0: nothing.
  int Hear(int number);
  // The last signal; 0: none.
  int signal() const { return signal_; }

 private:
  int signal_ = 0, times_ = 0;
  RankProcess::Clock::time_point last_;
};

// Waits for a signal, for output of these processes (null: none), until one of `others` is
// readable, or for a time (-1: for ever); and passes on what the processes wrote. Returns whether
// nobody reads that any more, which it says unless `ends`.
bool AwaitOutput(const LauncherSignals& signals, std::span<RankProcess* const> processes,
                 std::vector<pollfd> others, int timeout_ms, bool ends);

// How rank `local` of this machine's `nproc` starts, for the time `number`. Makes its log folder.
RankProcess::Options RankOptions(const LaunchOptions& options, int number, int local, int nproc,
                                 int port, const std::string& secret);

}  // namespace lockstep::dist
