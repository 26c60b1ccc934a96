// Children of a test, which may be killed while they save a checkpoint.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

namespace lockstep::test {

// Runs f in a child process. Call it from a process without other threads.
inline pid_t Fork(const std::function<void()>& f) {
  const pid_t child = fork();
  if (child == 0) {
    f();
    _exit(0);
  }
  return child;
}

// Waits for a child, and returns whether it ended by itself rather than by SIGKILL. Any other end
// fails the test.
inline bool Lived(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return !killed;
}

inline bool InChild(const std::function<void()>& f) { return Lived(Fork(f)); }

}  // namespace lockstep::test
