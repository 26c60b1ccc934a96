#include "dist/launch/launcher.h"

#include <netinet/in.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/io/file.h"
#include "core/system/environment.h"
#include "core/system/processors.h"

namespace lockstep::dist {

void SayAsLauncher(const std::string& line) {
  std::fflush(stdout);
  std::fprintf(stderr, "launch: %s\n", line.c_str());
  std::fflush(stderr);
}

ReservedPort::ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (socket_.fd() < 0 ||
      setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(socket_.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw Error(StrCat("there is no free port: ", std::strerror(errno)));
  }
}

LauncherSignals::LauncherSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, number);
  struct sigaction hangup;  // ignored under nohup
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  sigprocmask(SIG_BLOCK, &set, &before_);
  pipe_before_ = signal(SIGPIPE, SIG_IGN);
  fd_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd_.fd() < 0) throw Error(StrCat("signalfd: ", std::strerror(errno)));
}

LauncherSignals::~LauncherSignals() {
  signal(SIGPIPE, pipe_before_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int LauncherSignals::Next() const {
  signalfd_siginfo info;
  while (read(fd_.fd(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
  }
  return 0;
}

int Insistence::Hear(int number) {
  constexpr std::chrono::seconds kOneSignal(1);
  const auto now = RankProcess::Clock::now();
  if (times_ > 0 && now - last_ < kOneSignal) return 0;
  last_ = now;
  signal_ = number;
  return ++times_ < 3 ? number : SIGKILL;
}

bool AwaitOutput(const LauncherSignals& signals, std::span<RankProcess* const> processes,
                 std::vector<pollfd> others, int timeout_ms, bool ends) {
  others.push_back({signals.fd(), POLLIN, 0});
  std::vector<LineRelay*> relays;
  for (RankProcess* p : processes) {
    if (p != nullptr) relays.insert(relays.end(), {&p->out(), &p->err()});
  }
  for (const LineRelay* relay : relays) {
    if (relay->fd() >= 0) others.push_back({relay->fd(), POLLIN, 0});
  }
  poll(others.data(), others.size(), timeout_ms);
  for (LineRelay* relay : relays) relay->Read();
  const bool closed = std::ranges::any_of(processes, [](RankProcess* p) {
    return p != nullptr && p->running() && p->out().is_closed();
  });
  if (closed && !ends) {
    SayAsLauncher("nobody reads the output any more: the ranks are told to end");
  }
  return closed;
}

RankProcess::Options RankOptions(const LaunchOptions& options, int number, int local, int nproc,
                                 int port, const std::string& secret) {
  const int rank = options.node_rank * nproc + local;
  RankProcess::Options o{.command = options.command, .rank = rank};
  o.inherits_stdout = options.only_rank_0_prints && rank == 0;
  o.environment = {{"RANK", StrCat(rank)},
                   {"WORLD_SIZE", StrCat(options.nnodes * nproc)},
                   {"LOCAL_RANK", StrCat(local)},
                   {"LOCAL_WORLD_SIZE", StrCat(nproc)},
                   {"MASTER_ADDR", options.master_addr},
                   {"MASTER_PORT", StrCat(port)},
                   {"LOCKSTEP_SECRET", secret},
                   {"LOCKSTEP_RESTARTS", StrCat(number)}};
  if (!EnvironmentVariable("OMP_NUM_THREADS")) {
    o.environment["OMP_NUM_THREADS"] = StrCat(std::max(1, UsableProcessors() / nproc));
  }
  if (!options.log_dir.empty()) {
    o.log_folder = JoinPath(options.log_dir, StrCat("start-", number, "/rank-", rank));
    MakeDirectories(o.log_folder);
  }
  return o;
}

}  // namespace lockstep::dist
