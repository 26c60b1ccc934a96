#include "dist/launch/launch.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <system_error>
#include <tuple>

#include "core/error.h"
#include "core/io/json.h"
#include "core/system/environment.h"
#include "dist/collective.h"
#include "dist/control/handshake.h"
#include "dist/control/rendezvous.h"
#include "dist/launch/elastic_launch.h"
#include "dist/launch/launcher.h"
#include "dist/launch/rank_process.h"

namespace lockstep::dist {
namespace {

using Clock = RankProcess::Clock;

// How long the other ranks have to find out which one failed, and to report it.
constexpr auto kReportTime = std::chrono::seconds(5);

void Check(const LaunchOptions& o) {
  if (o.command.empty()) throw InputError("there is no program to launch: give one after --");
  if (o.nproc < 1) throw InputError(StrCat("nproc is ", o.nproc, "; it must be at least 1"));
  if (o.restart_nproc < 0) {
    throw InputError(StrCat("restart_nproc is ", o.restart_nproc, "; it must be at least 1"));
  }
  if (o.nnodes < 1) throw InputError(StrCat("nnodes is ", o.nnodes, "; it must be at least 1"));
  if (o.node_rank < 0 || o.node_rank >= o.nnodes) {
    throw InputError(StrCat("node_rank is ", o.node_rank, ", but nnodes is ", o.nnodes,
                            "; machines count from 0"));
  }
  if (o.elastic && o.restart_nproc > 0) {
    throw InputError(
        "--restart_nproc is for restarts of all ranks, and --elastic restarts single "
        "ones: leave one of them out");
  }
  if (o.least > o.nproc * o.nnodes) {
    throw InputError(
        StrCat("--least is ", o.least, ", but there are ", o.nproc * o.nnodes, " ranks"));
  }
  if (o.nnodes == 1) return;
  if (IsLoopback(o.master_addr) && !IsOwnName(o.master_addr)) {
    throw InputError(StrCat("rank 0 is at ", o.master_addr, ", which the other ", o.nnodes - 1,
                            " machines cannot reach: give the address of the first machine, as "
                            "--rdzv=HOST:PORT"));
  }
  if (!EnvironmentVariable("LOCKSTEP_SECRET")) {
    throw InputError(
        "ranks on several machines need a shared secret: set LOCKSTEP_SECRET to the same value on "
        "all of them, such as the output of `openssl rand -hex 16`");
  }
}

// One start of this machine's ranks.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, int number, int port, const std::string& secret,
          const LauncherSignals& signals)
      : options_(options),
        nproc_(number > 0 && options.restart_nproc > 0 ? options.restart_nproc : options.nproc),
        signals_(signals),
        begin_(Clock::now()) {
    for (int local = 0; local < nproc_; ++local) {
      ranks_.push_back(std::make_unique<RankProcess>(
          RankOptions(options_, number, local, nproc_, port, secret)));
    }
  }

  // Returns when all have ended.
  void Run() {
    while (std::any_of(ranks_.begin(), ranks_.end(), [](auto& r) { return r->running(); })) {
      constexpr int kTickMs = 100;
      const bool is_closed = AwaitOutput(signals_, Ranks(), {}, first_failure_ ? kTickMs : -1,
                                         /*ends=*/signal() != 0);
      for (int number; (number = signals_.Next()) != 0;) {
        if (const int send = insistence_.Hear(number)) SignalAll(send);
      }
      if (signal() == 0 && is_closed) {
        insistence_.Hear(SIGPIPE);
        SignalAll(SIGTERM);
      }
      for (auto& r : ranks_) r->Reap();
      // After a signal ranks end one by one, and the last may still be writing a checkpoint.
      if (!first_failure_ && signal() == 0 && Failed() != nullptr) {
        first_failure_ = Clock::now();
        if (Running() > 0 && !Failed()->stopped())
          SayAsLauncher(StrCat("rank ", Failed()->rank(), " ", Failed()->Ending()));
      }
      EndTheOthers();
    }
  }

  // The forwarded signal, or 0.
  int signal() const { return insistence_.signal(); }

  // Whether all ranks have stopped after a signal to one of them, not to the launcher.
  bool StoppedTogether() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](auto& r) { return r->stopped(); });
  }

  // The rank that failed first, or null.
  const RankProcess* Failed() const {
    const RankProcess* first = nullptr;
    for (const auto& r : ranks_) {
      if (r->failed() && (first == nullptr || IsCloserToTheCause(*r, *first))) first = r.get();
    }
    return first;
  }

  // A rank that should have stopped, but has failed: it may not have saved. Or null.
  const RankProcess* FailedToStop() const {
    const auto failed = std::find_if(ranks_.begin(), ranks_.end(), [](auto& r) {
      return r->failed() && !r->stopped() && !r->message().empty() && !r->is_consequence();
    });
    return failed == ranks_.end() ? nullptr : failed->get();
  }

  void ReportCause(const RankProcess* cause) const {
    const double seconds = std::chrono::duration<double>(cause->ended() - begin_).count();
    std::array<char, 32> after;
    std::snprintf(after.data(), after.size(), "%.1f", seconds);
    SayAsLauncher(StrCat("the first failure: rank ", cause->rank(), " ", cause->Ending(), " after ",
                         after.data(), " s",
                         cause->message().empty() ? "" : ": " + cause->message()));
    if (cause->message().empty()) {
      const auto& lines = cause->err().last_lines();
      if (lines.empty()) SayAsLauncher("it wrote nothing to stderr");
      for (const std::string& line : lines) SayAsLauncher("  | " + line);
    }
    std::string others;
    for (const auto& r : ranks_) {
      if (r.get() == cause || !r->failed()) continue;
      others += StrCat(others.empty() ? "" : "; ", "rank ", r->rank(), " ", r->Ending());
    }
    if (!others.empty()) SayAsLauncher("after it: " + others);
    if (!options_.log_dir.empty()) SayAsLauncher("logs: " + options_.log_dir);
  }

 private:
  // A killed rank has had no time to report another as the cause. Ranks that report another as the
  // cause come last, and after them those that were told to end.
  bool IsCloserToTheCause(const RankProcess& a, const RankProcess& b) const {
    const auto order = [this](const RankProcess& r) {
      const bool told = told_to_end_ && r.ended() > *told_to_end_;
      return std::tuple(told, r.is_consequence(), !r.signaled(), r.ended());
    };
    return order(a) < order(b);
  }

  int64_t Running() const {
    return std::count_if(ranks_.begin(), ranks_.end(), [](auto& r) { return r->running(); });
  }

  void SignalAll(int number) {
    for (const auto& r : ranks_) {
      if (r->running()) r->Signal(number);
    }
  }

  std::vector<RankProcess*> Ranks() const {
    std::vector<RankProcess*> ranks;
    for (const auto& r : ranks_) ranks.push_back(r.get());
    return ranks;
  }

  void EndTheOthers() {
    if (!first_failure_) return;
    const auto since = Clock::now() - *first_failure_;
    if (since > kReportTime && !told_to_end_) {
      told_to_end_ = Clock::now();
      SignalAll(SIGTERM);
      SignalAll(SIGCONT);
    }
    if (since > kReportTime + options_.grace) SignalAll(SIGKILL);
  }

  const LaunchOptions& options_;
  const int nproc_;
  const LauncherSignals& signals_;
  const Clock::time_point begin_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::optional<Clock::time_point> first_failure_;
  std::optional<Clock::time_point> told_to_end_;
  Insistence insistence_;
};

}  // namespace

int Launch(const LaunchOptions& options) {
  Check(options);
  if (options.elastic) return LaunchElastically(options);
  const LauncherSignals signals;
  std::optional<ReservedPort> reserved;
  if (options.nnodes == 1 && options.master_port == 0) reserved.emplace();
  const int port = reserved                   ? reserved->port()
                   : options.master_port != 0 ? options.master_port
                                              : kDefaultMasterPort;
  const std::string secret =
      EnvironmentVariable("LOCKSTEP_SECRET").value_or(handshake::RandomSecret());
  for (int number = 0;; ++number) {
    Attempt attempt(options, number, port, secret, signals);
    attempt.Run();
    const RankProcess* const failed = attempt.Failed();
    if (failed == nullptr) return 0;
    if (attempt.signal() != 0) {
      const RankProcess* const unsaved = attempt.FailedToStop();
      if (unsaved == nullptr) return 128 + attempt.signal();
      attempt.ReportCause(unsaved);
      return unsaved->exit_code();
    }
    if (attempt.StoppedTogether()) return failed->exit_code();
    attempt.ReportCause(failed);
    if (number == options.max_restarts) return failed->exit_code();
    if (failed->is_usage_error()) {
      SayAsLauncher("not restarted, since it would fail again");
      return failed->exit_code();
    }
    SayAsLauncher(StrCat("restarting all ranks (restart ", number + 1, " of at most ",
                         options.max_restarts, ")"));
  }
}

namespace {

// The standard library's errors say little of what to do.
std::string TextOf(const std::exception& error) {
  const auto* const failure = dynamic_cast<const std::system_error*>(&error);
  if (failure != nullptr && failure->code().value() == EAGAIN) {
    return "no thread could be started: the process has reached its limit of memory (ulimit -v), "
           "or "
           "the user that of processes (ulimit -u): raise it";
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "out of memory: the system has no more, or the process has reached its limit (ulimit -v): "
         "raise that, end other programs, or use smaller sizes";
}

}  // namespace

bool TellLauncher(const std::exception& error) noexcept {
  try {
    const auto fd = EnvironmentVariable(RankProcess::kReportVariable);
    if (!fd) return false;
    constexpr size_t kLongest = 16384;  // fits into a pipe
    bool consequence = false;
    if (const auto* const failure = dynamic_cast<const CollectiveError*>(&error)) {
      const auto& culprits = failure->culprits();
      consequence = std::find(culprits.begin(), culprits.end(), failure->rank()) == culprits.end();
    }
    const bool input_error = dynamic_cast<const InputError*>(&error) != nullptr;
    const Json report = {{"message", TextOf(error).substr(0, kLongest)},
                         {"consequence", consequence},
                         {"input_error", input_error}};
    const std::string text = report.dump();
    return write(std::stoi(*fd), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  } catch (...) {
    return false;
  }
}

int EndWith(const char* program, const std::exception& error) {
  std::fflush(stdout);
  const int code = ExitCodeOf(error);
  const bool refused = dynamic_cast<const InputError*>(&error) != nullptr;
  if (!TellLauncher(error) || !refused) {
    std::fprintf(stderr, "%s: %s\n", program, TextOf(error).c_str());
  }
  return code;
}

}  // namespace lockstep::dist
