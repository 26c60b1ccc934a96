// Starts the ranks of a run on this machine, and sees to their end.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <vector>

namespace lockstep::dist {

struct LaunchOptions {
  std::vector<std::string> command;       // a program (looked for in PATH) and its arguments
  int nproc = 1;                          // ranks on this machine
  int nnodes = 1, node_rank = 0;          // machines with as many ranks each, and which this one is
  std::string master_addr = "127.0.0.1";  // the machine of rank 0
  int master_port = 0;                    // 0: on one machine a free one, else 29500
  int max_restarts = 0;                   // how often all ranks are started again after a failure
  int restart_nproc = 0;                  // as nproc, for those starts; 0: the same
  std::string log_dir;                    // also gets what each rank writes; empty: nowhere
  // How long ranks may take to end after SIGTERM, before they are killed.
  std::chrono::milliseconds grace = std::chrono::seconds(60);
};

// Runs `command` once for each rank, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT, LOCKSTEP_SECRET (made up on one machine unless it is set),
// LOCKSTEP_RESTARTS (how often the ranks were started again) and, unless it is set, OMP_NUM_THREADS
// (this rank's share of the processors) in its environment.
//
// Lines that ranks write come out with the rank before them. SIGTERM, SIGINT and SIGHUP are passed
// on to all ranks; the third one kills them. If a rank fails, the others have a few seconds to say
// what they know, then SIGTERM and at last SIGKILL ends them; stderr names the rank that failed
// first, and why. If this process ends in whatever way, SIGKILL too, the kernel kills the ranks.
//
// Returns the exit code: 0, that of the rank which failed first (128 + its signal), or 128 + the
// signal that was passed on. Throws InputError for options that contradict each other or a program
// that cannot be run. To be called from the main thread, before others are started.
int Launch(const LaunchOptions& options);

// What ranks do: tells the launcher, if there is one, what the exception says that ends this rank,
// and whether it is the consequence of another rank's failure. For main()'s last catch.
void TellLauncher(const std::exception& error) noexcept;

}  // namespace lockstep::dist
