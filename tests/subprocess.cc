#include "tests/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace lockstep {
namespace {

void Append(int* fd, std::string* text) {
  std::array<char, 4096> buffer;
  const ssize_t n = read(*fd, buffer.data(), buffer.size());
  if (n > 0) {
    text->append(buffer.data(), static_cast<size_t>(n));
  } else if (n == 0 || errno != EINTR) {
    close(*fd);
    *fd = -1;
  }
}

}  // namespace

Subprocess::Subprocess(const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    const std::string message = std::string("cannot run ") + argv[0] + ": " + std::strerror(errno);
    [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, message.data(), message.size());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Subprocess::~Subprocess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

bool Subprocess::ReadSome() {
  if (out_ < 0 && err_ < 0) return false;
  std::array<pollfd, 2> fds = {pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
  if (poll(fds.data(), fds.size(), -1) < 0) return true;
  if (out_ >= 0 && fds[0].revents != 0) Append(&out_, &result_.out);
  if (err_ >= 0 && fds[1].revents != 0) Append(&err_, &result_.err);
  return true;
}

void Subprocess::WaitForOutput(const std::string& text) {
  while (result_.out.find(text) == std::string::npos && ReadSome()) {
  }
}

void Subprocess::Signal(int number) const { kill(pid_, number); }

void Subprocess::Stop() const {
  Signal(SIGSTOP);
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
}

Result Subprocess::Wait() {
  while (ReadSome()) {
  }
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  return result_;
}

Result RunProgram(const std::vector<std::string>& arguments,
                  const std::map<std::string, std::string>& environment) {
  return Subprocess(arguments, environment).Wait();
}

}  // namespace lockstep
