#include "dist/launch/elastic_launch.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"
#include "core/system/environment.h"
#include "dist/control/handshake.h"
#include "dist/launch/launcher.h"
#include "dist/launch/member_messages.h"
#include "dist/launch/members.h"
#include "dist/launch/rank_process.h"

namespace lockstep::dist {
namespace {

using Clock = RankProcess::Clock;

// How long a world that begins from a checkpoint waits for all processes.
constexpr std::chrono::seconds kPatience(30);
// How long a process that failed by itself is left out: if it was the run that failed, the others
// end now, too, and nothing is restarted.
constexpr std::chrono::seconds kPauseAfterError(2);

class ElasticRanks {
 public:
  explicit ElasticRanks(const LaunchOptions& options)
      : options_(options),
        secret_(EnvironmentVariable("LOCKSTEP_SECRET").value_or(handshake::RandomSecret())),
        members_(options.least, options.nproc),
        slots_(static_cast<size_t>(options.nproc)) {}

  int Run() {
    for (Slot& slot : slots_) Start(slot);
    while (AnyRuns()) {
      Wait();
      for (int number; (number = signals_.Next()) != 0;) {
        if (const int send = insistence_.Hear(number)) SignalAll(send);
      }
      for (Slot& slot : slots_) Reap(slot);
      for (Slot& slot : slots_) StartAgain(slot);
      Decide();
    }
    return End();
  }

 private:
  // A place for a process. Its number is the rank with which the process starts, and its name in
  // what is shown.
  struct Slot {
    std::unique_ptr<RankProcess> process{};
    std::string begun{};  // of a line that it says
    bool deaf = false;    // it has closed the connection
    int starts = 0;
    std::optional<Clock::time_point> again{};  // when to start it again
  };

  int NumberOf(const Slot& slot) const { return static_cast<int>(&slot - slots_.data()); }
  bool Ends() const { return finished_ || insistence_.signal() != 0 || stopped_ || refused_; }
  bool AnyRuns() const {
    return std::ranges::any_of(slots_, [&](const Slot& s) {
      return (s.process && s.process->running()) || (s.again && !Ends() && members_.living() > 0);
    });
  }

  void Start(Slot& slot) {
    RankProcess::Options o =
        RankOptions(options_, slot.starts++, NumberOf(slot), options_.nproc, port_.port(), secret_);
    o.is_member = true;
    slot.again.reset();
    slot.begun.clear();
    slot.deaf = false;
    slot.process = std::make_unique<RankProcess>(o);
    members_.Start(NumberOf(slot), /*node=*/0, options_.master_addr);
  }

  void StartAgain(Slot& slot) {
    if (!slot.again || Clock::now() < *slot.again || Ends() || members_.living() == 0) return;
    ++restarts_;
    SayAsLauncher(StrCat("starting process ", NumberOf(slot), " again (restart ", restarts_,
                         " of at most ", options_.max_restarts, ")"));
    Start(slot);
  }

  void Reap(Slot& slot) {
    if (!slot.process || !slot.process->running()) return;
    RankProcess& p = *slot.process;
    p.Reap();
    if (p.running()) return;
    if (members_.End(NumberOf(slot), p.Ending())) TellAll(ToLine("broken", ""));
    if (!p.failed()) {
      finished_ = true;
      return;
    }
    if (p.stopped()) {
      stopped_ = true;
      return;
    }
    if (Ends()) return;
    SayAsLauncher(StrCat("process ", NumberOf(slot), " ", p.Ending(),
                         p.message().empty() ? "" : ": " + p.message()));
    if (!cause_ || cause_->consequence) cause_ = {p.exit_code(), p.is_consequence()};
    if (p.is_usage_error()) {
      refused_ = members_.epoch() == 0;  // else only this process is left out
      return;
    }
    if (restarts_ >= options_.max_restarts) return;
    slot.again = Clock::now() + (p.signaled() ? std::chrono::seconds(0) : kPauseAfterError);
    // All that had the run have been killed: it goes on from its checkpoint.
    if (p.signaled() && members_.living() == 0) StartAll();
  }

  void StartAll() {
    for (Slot& slot : slots_) {
      if (slot.process && slot.process->running()) continue;
      ++restarts_;
      Start(slot);
    }
  }

  void Decide() {
    for (const int member : members_.Condemn()) {
      SayAsLauncher(StrCat("process ", member, " does not answer the others, and is killed"));
      slots_[static_cast<size_t>(member)].process->Signal(SIGKILL);
    }
    // A run that was told to stop needs a world, too, to save its state.
    if (finished_ || stopped_ || refused_) {
      return TellAll(ToLine("over", ""));
    }
    const bool patient = !waiting_since_ || Clock::now() - *waiting_since_ < kPatience;
    const auto places = members_.Form(patient);
    for (const auto& [member, place] : places) Tell(member, ToLine(place));
    if (!places.empty()) waiting_since_.reset();
    for (const int member : members_.Summon()) Tell(member, ToLine("summoned", ""));
    if (Ends() || members_.living() >= options_.least || AnyComes()) return;
    const std::string reason =
        StrCat("only ", members_.living(), " of at least ", options_.least,
               " processes are left, and none is started any more (--max_restarts)");
    if (members_.living() > 0) SayAsLauncher(reason);
    TellAll(ToLine("refused", reason));
    refused_ = true;
  }

  bool AnyComes() const {
    return std::ranges::any_of(slots_, [](const Slot& s) { return s.again.has_value(); });
  }

  void Tell(int member, const std::string& line) const {
    const Slot& slot = slots_[static_cast<size_t>(member)];
    if (slot.process && slot.process->running()) SendLine(slot.process->member().fd(), line);
  }

  void TellAll(const std::string& line) const {
    for (const Slot& slot : slots_) Tell(NumberOf(slot), line);
  }

  void SignalAll(int number) const {
    for (const Slot& slot : slots_) {
      if (slot.process && slot.process->running()) slot.process->Signal(number);
    }
  }

  // Waits until something happens or the next tick.
  void Wait() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    for (const Slot& slot : slots_) {
      if (!slot.process || !slot.process->running()) continue;
      for (LineRelay* relay : {&slot.process->out(), &slot.process->err()}) {
        if (relay->fd() >= 0) fds.push_back({relay->fd(), POLLIN, 0});
      }
      if (!slot.deaf) fds.push_back({slot.process->member().fd(), POLLIN, 0});
    }
    constexpr int kTickMs = 100;
    poll(fds.data(), fds.size(), kTickMs);
    for (Slot& slot : slots_) {
      if (!slot.process) continue;
      slot.process->out().Read();
      slot.process->err().Read();
      Listen(slot);
    }
  }

  void Listen(Slot& slot) {
    std::array<char, 4096> buffer;
    ssize_t n = 0;
    while ((n = read(slot.process->member().fd(), buffer.data(), buffer.size())) > 0) {
      slot.begun.append(buffer.data(), static_cast<size_t>(n));
    }
    slot.deaf = n == 0;
    while (const auto line = TakeLine(&slot.begun)) {
      try {
        members_.BeReady(NumberOf(slot), ReadyOf(TryParseJson(*line).at("ready")));
        if (!waiting_since_) waiting_since_ = Clock::now();
      } catch (const std::exception&) {  // the program may have written anything there
      }
    }
  }

  int End() const {
    if (const int number = insistence_.signal()) return 128 + number;
    if (finished_) return 0;
    for (const Slot& slot : slots_) {
      if (slot.process && slot.process->stopped()) return slot.process->exit_code();
    }
    return cause_ ? cause_->exit_code : 1;
  }

  struct Cause {
    int exit_code = 1;
    bool consequence = false;
  };

  const LaunchOptions& options_;
  const LauncherSignals signals_;
  const ReservedPort port_;  // for programs that are not elastic
  const std::string secret_;
  Members members_;
  std::vector<Slot> slots_;
  Insistence insistence_;
  int restarts_ = 0;
  bool finished_ = false, stopped_ = false, refused_ = false;
  std::optional<Cause> cause_;
  std::optional<Clock::time_point> waiting_since_;  // somebody is ready, and there is no new world
};

}  // namespace

int LaunchElastically(const LaunchOptions& options) { return ElasticRanks(options).Run(); }

}  // namespace lockstep::dist
