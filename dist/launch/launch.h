// Starts the ranks of a run on this machine, and ensures that they end.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <vector>

namespace lockstep::dist {

// How often ranks of an elastic run are started again, unless something else is asked for.
inline constexpr int kElasticRestarts = 100;

struct LaunchOptions {
  std::vector<std::string> command;       // a program (looked for in PATH) and its arguments
  int nproc = 1;                          // ranks on this machine
  int nnodes = 1, node_rank = 0;          // machines, each with nproc ranks, and this one's index
  std::string master_addr = "127.0.0.1";  // the machine of rank 0
  int master_port = 0;                    // 0: a free port on one machine, else 29500
  // How often all ranks are restarted after a failure; of an elastic run, how often single ones.
  int max_restarts = 0;
  bool elastic = false;             // the ranks go on without those that end
  int least = 1;                    // elastic: with how many ranks on all machines
  int restart_nproc = 0;            // nproc for restarts; 0: the same
  std::string log_dir;              // folder for a copy of each rank's output; may be empty
  bool only_rank_0_prints = false;  // to this process's stdout, and nothing is put in front
  // How long ranks may take to end after SIGTERM before they are killed.
  std::chrono::milliseconds grace = std::chrono::seconds(60);
};

// Runs `command` once for each rank, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT, LOCKSTEP_SECRET (generated on one machine unless it is set),
// LOCKSTEP_RESTARTS (how often the ranks were restarted) and, unless it is set, OMP_NUM_THREADS
// (this rank's share of the processors) in its environment.
//
// Each line that a rank writes is shown with the rank's number in front. SIGTERM, SIGINT, SIGUSR1
// and SIGHUP are forwarded to all ranks; the third such signal kills them. If a rank fails, the
// others have a few seconds to report what they know, then get SIGTERM and finally SIGKILL; stderr
// says which rank failed first, and why. However this process ends, even by SIGKILL, the kernel
// kills the ranks.
//
// Returns the exit code: 0, that of the rank that failed first (128 + its signal if it was killed),
// or 128 + the forwarded signal, unless a rank reports that it failed thereafter. Throws InputError
// for contradictory options or a program that cannot be run. Call it on the main thread, before
// starting others.
int Launch(const LaunchOptions& options);

// For ranks: tells the launcher, if there is one, the text of the exception that ends this rank,
// and whether it is a consequence of another rank's failure. Call it in main()'s last catch. False
// if there is no launcher.
bool TellLauncher(const std::exception& error) noexcept;

// What main()'s last catch returns: tells the launcher and stderr, but not the latter what all
// ranks refuse (an InputError), which the launcher says once. The result is ExitCodeOf(error).
int EndWith(const char* program, const std::exception& error);

}  // namespace lockstep::dist
