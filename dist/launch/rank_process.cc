#include "dist/launch/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::dist {
namespace {

constexpr size_t kLastLines = 20;

struct Pipe {
  FileDescriptor read, write;
};

Pipe MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) throw Error(StrCat("pipe2: ", std::strerror(errno)));
  return {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

std::FILE* OpenLog(const std::string& folder, const char* name) {
  if (folder.empty()) return nullptr;
  const std::string path = JoinPath(folder, name);
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) throw IoError(StrCat("cannot write ", path, ": ", std::strerror(errno)));
  return file;
}

// The arguments of execvpe.
class Exec {
 public:
  explicit Exec(const RankProcess::Options& options) : command_(options.command) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (!options.environment.contains(text.substr(0, text.find('=')))) {
        environment_.push_back(text);
      }
    }
    for (const auto& [name, value] : options.environment) {
      environment_.push_back(StrCat(name, "=", value));
    }
    environment_.push_back(StrCat(RankProcess::kReportVariable, "=", kReportFd));
    if (options.is_member) {
      environment_.push_back(StrCat(RankProcess::kMemberVariable, "=", kMemberFd));
    }
    for (std::string& text : command_) argv_.push_back(text.data());
    for (std::string& text : environment_) envp_.push_back(text.data());
    argv_.push_back(nullptr);
    envp_.push_back(nullptr);
  }
  // Returns only if it fails, with errno set.
  void Run() const { execvpe(argv_[0], argv_.data(), envp_.data()); }

  static constexpr int kReportFd = 3, kMemberFd = 4;

 private:
  std::vector<std::string> command_, environment_;
  std::vector<char*> argv_, envp_;
};

// Runs after fork, so it makes only async-signal-safe calls. `fds` become stdout, stderr, kReportFd
// and, unless it is -1, kMemberFd.
[[noreturn]] void RunChild(const Exec& exec, std::array<int, 4> fds, int failure, pid_t parent) {
  setpgid(0, 0);
  // Die with the launcher, however it ends; it may have ended already.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  // Move the descriptors away from their targets.
  constexpr int kAbove = 16;
  failure = fcntl(failure, F_DUPFD_CLOEXEC, kAbove);
  for (int& fd : fds) fd = fcntl(fd, F_DUPFD_CLOEXEC, kAbove);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(fds[0], STDOUT_FILENO);
  dup2(fds[1], STDERR_FILENO);
  dup2(fds[2], Exec::kReportFd);
  if (fds[3] >= 0) dup2(fds[3], Exec::kMemberFd);
  exec.Run();
  const int code = errno;
  [[maybe_unused]] const ssize_t n = write(failure, &code, sizeof(code));
  _exit(127);
}

}  // namespace

LineRelay::LineRelay(FileDescriptor pipe, std::string prefix, std::FILE* to, std::FILE* file)
    : pipe_(std::move(pipe)), prefix_(std::move(prefix)), to_(to), file_(file) {
  fcntl(pipe_.fd(), F_SETFL, O_NONBLOCK);
}

void LineRelay::Read() {
  ReadSome();
  Flush();
}

void LineRelay::Flush() {
  if (std::fflush(to_) != 0 && errno == EPIPE) closed_ = true;
  if (file_) std::fflush(file_.get());
}

void LineRelay::Finish() {
  // Read what the rank has left, within a limit: processes it has started may write forever.
  for (int reads = 0; reads < 16 && ReadSome(); ++reads) {
  }
  PassOn(/*all=*/true);
  Flush();
}

// Returns false if nothing has arrived.
bool LineRelay::ReadSome() {
  if (pipe_.fd() < 0) return false;
  std::array<char, 65536> buffer;
  ssize_t n = 0;
  while ((n = read(pipe_.fd(), buffer.data(), buffer.size())) < 0 && errno == EINTR) {
  }
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) {
    PassOn(/*all=*/true);
    pipe_ = FileDescriptor();
    return false;
  }
  const auto size = static_cast<size_t>(n);
  if (file_) std::fwrite(buffer.data(), 1, size, file_.get());
  begun_.append(buffer.data(), size);
  PassOn(/*all=*/false);
  return true;
}

void LineRelay::PassOn(bool all) {
  size_t at = 0;
  for (size_t end; (end = begun_.find_first_of("\r\n", at)) != std::string::npos; at = end + 1) {
    Line(std::string_view(begun_).substr(at, end - at), begun_[end]);
  }
  const std::string_view rest = std::string_view(begun_).substr(at);
  if (rest.size() >= kLongest || (all && !rest.empty())) {
    Line(rest, '\n');
    at = begun_.size();
  }
  begun_.erase(0, at);
}

void LineRelay::Line(std::string_view line, char end) {
  const bool replaces = std::exchange(after_return_, end == '\r');
  // "\r\n" ends only one line, and a "\r" at the beginning ends none.
  if (line.empty() && (replaces || end == '\r')) {
    if (end == '\n') std::fputc('\n', to_);
    after_return_ = replaces && end == '\r';
    return;
  }
  const int written = std::fprintf(to_, "%s%.*s%c", prefix_.c_str(), static_cast<int>(line.size()),
                                   line.data(), end);
  if (written < 0 && errno == EPIPE) closed_ = true;
  if (replaces && !last_.empty()) last_.pop_back();
  last_.emplace_back(line);
  if (last_.size() > kLastLines) last_.pop_front();
}

RankProcess::RankProcess(const Options& options) : options_(options) {
  Pipe out = MakePipe(), err = MakePipe(), report = MakePipe(), failure = MakePipe();
  const std::string prefix = StrCat("[", options.rank, "] ");
  out_ = std::make_unique<LineRelay>(std::move(out.read), prefix, stdout,
                                     OpenLog(options.log_folder, "stdout.log"));
  err_ = std::make_unique<LineRelay>(std::move(err.read), prefix, stderr,
                                     OpenLog(options.log_folder, "stderr.log"));
  report_ = std::move(report.read);
  fcntl(report_.fd(), F_SETFL, O_NONBLOCK);
  FileDescriptor members_end;
  if (options.is_member) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
      throw Error(StrCat("socketpair: ", std::strerror(errno)));
    }
    member_ = FileDescriptor(fds[0]);
    members_end = FileDescriptor(fds[1]);
    fcntl(member_.fd(), F_SETFL, O_NONBLOCK);
  }
  const Exec exec(options);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw Error(StrCat("fork: ", std::strerror(errno)));
  if (pid_ == 0) {
    const int to = options.inherits_stdout ? STDOUT_FILENO : out.write.fd();
    RunChild(exec, {to, err.write.fd(), report.write.fd(), members_end.fd()}, failure.write.fd(),
             parent);
  }
  setpgid(pid_, pid_);  // in parent and child, whichever runs first
  failure.write = FileDescriptor();
  int code = 0;
  ssize_t n = 0;
  while ((n = read(failure.read.fd(), &code, sizeof(code))) < 0 && errno == EINTR) {
  }
  if (n != sizeof(code)) return;
  waitpid(pid_, nullptr, 0);
  throw InputError(StrCat("cannot run ", options.command[0], ": ", std::strerror(code)));
}

RankProcess::~RankProcess() {
  if (!running()) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void RankProcess::Signal(int number) const { kill(-pid_, number); }

bool IsSuspended(pid_t pid) {
  try {
    const std::string stat = ReadFile(StrCat("/proc/", pid, "/stat"));
    const size_t name_end = stat.rfind(") ");
    return name_end != std::string::npos && stat.substr(name_end + 2, 1) == "T";
  } catch (const IoError&) {
    return false;  // it has ended
  }
}

void RankProcess::Reap() {
  int status = 0;
  if (!running() || waitpid(pid_, &status, WNOHANG) != pid_) return;
  status_ = status;
  ended_ = Clock::now();
  Signal(SIGKILL);  // processes that it has left behind
  out_->Finish();
  err_->Finish();
  ReadReport();
}

void RankProcess::ReadReport() {
  std::array<char, 65536> buffer;
  const ssize_t n = read(report_.fd(), buffer.data(), buffer.size());
  if (n <= 0) return;
  const Json report = TryParseJson({buffer.data(), static_cast<size_t>(n)});
  if (!report.is_object()) return;
  // The program may have written anything there.
  const auto is = [&](const char* name) {
    const Json* field = report.Find(name);
    return field != nullptr && field->is_boolean() && field->get<bool>();
  };
  const Json* message = report.Find("message");
  if (message != nullptr && message->is_string()) message_ = message->string();
  consequence_ = is("consequence");
  input_error_ = is("input_error");
}

bool RankProcess::signaled() const { return status_ && WIFSIGNALED(*status_); }

int RankProcess::exit_code() const {
  return signaled() ? 128 + WTERMSIG(*status_) : WEXITSTATUS(*status_);
}

bool RankProcess::stopped() const {
  const int number = exit_code() - 128;
  return !signaled() &&
         (number == SIGINT || number == SIGTERM || number == SIGUSR1 || number == SIGHUP);
}

std::string RankProcess::Ending() const {
  if (signaled()) {
    const int number = WTERMSIG(*status_);
    return StrCat("was killed by signal ", number, " (", strsignal(number), ")");
  }
  return StrCat("ended with exit code ", exit_code());
}

}  // namespace lockstep::dist
