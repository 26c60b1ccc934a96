#include "dist/launch/elastic_launch.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"
#include "core/system/environment.h"
#include "dist/control/handshake.h"
#include "dist/control/rendezvous.h"
#include "dist/launch/coordinator.h"
#include "dist/launch/launcher.h"
#include "dist/launch/launcher_links.h"
#include "dist/launch/member_messages.h"
#include "dist/launch/rank_process.h"

namespace lockstep::dist {
namespace {

using Clock = RankProcess::Clock;

// How long a process that failed by itself is left out: if it was the run that failed, the others
// end now, too, and nothing is restarted.
constexpr std::chrono::seconds kPauseAfterError(2);

// The processes of one machine. The first machine also decides.
class ElasticRanks {
 public:
  explicit ElasticRanks(const LaunchOptions& options)
      : options_(options),
        secret_(EnvironmentVariable("LOCKSTEP_SECRET").value_or(handshake::RandomSecret())),
        slots_(static_cast<size_t>(options.nproc)) {
    const int port = options.master_port != 0 ? options.master_port : kDefaultMasterPort;
    const std::string secret = StrCat(secret_, "/launchers");
    if (options.node_rank == 0) {
      coordinator_.emplace(options.least, options.nproc * options.nnodes,
                           [this](int node, const ProcessOrder& order) { Give(node, order); });
      if (options.nnodes > 1) links_.emplace(options.master_addr, port, secret);
      address_ = options.master_addr;
    } else {
      links_.emplace(options.master_addr, port, secret, options.node_rank, kPatience);
      address_ = LauncherLinks::OwnAddress(options.master_addr, port);
    }
  }

  int Run() {
    if (options_.node_rank == 0) Begin();
    while (AnyRuns()) {
      const bool is_closed = Wait();
      for (int number; (number = signals_.Next()) != 0;) Stop(number, number);
      if (insistence_.signal() == 0 && is_closed) Stop(SIGPIPE, SIGTERM);
      WarnIfNobodyJoins();
      if (links_) HearOthers();
      for (Slot& slot : slots_) Reap(slot);
      for (Slot& slot : slots_) KillStopped(slot);
      for (Slot& slot : slots_) StartAgain(slot);
      if (coordinator_) coordinator_->Decide();
    }
    return End();
  }

 private:
  // How long the first machine is looked for.
  static constexpr std::chrono::seconds kPatience{300};

  // A place for a process. Its number is the rank with which the process starts, and its name in
  // what is shown.
  struct Slot {
    std::unique_ptr<RankProcess> process{};
    std::string begun{};                       // of a line that it says
    bool deaf = false;                         // it has closed the connection
    bool refused = false;                      // its input
    int starts = 0, errors = 0;                // errors: since it last ended in another way
    std::optional<Clock::time_point> again{};  // when to start it again
    std::optional<Clock::time_point> suspended_since{};
  };

  int IndexOf(const Slot& slot) const { return static_cast<int>(&slot - slots_.data()); }
  int NumberOf(const Slot& slot) const {
    return options_.node_rank * options_.nproc + IndexOf(slot);
  }
  static bool Runs(const Slot& slot) { return slot.process && slot.process->running(); }
  bool AnyProcess() const { return std::ranges::any_of(slots_, Runs); }
  bool Ends() const { return over_ || insistence_.signal() != 0; }
  // Whether others may go on with the run while a process of this machine is left out.
  bool OthersLive() const { return coordinator_ ? coordinator_->living() > 0 : !gone_; }
  bool AnyRuns() const {
    const bool again =
        std::ranges::any_of(slots_, [](const Slot& s) { return s.again.has_value(); });
    const bool waits = !coordinator_ && !begun_ && !gone_ && !Ends();  // for the first machine
    return AnyProcess() || waits || (again && !Ends() && OthersLive()) ||
           (coordinator_ && !Ends() && coordinator_->living() > 0);
  }

  // Passes a signal on.
  void Stop(int number, int send) {
    const int heard = insistence_.Hear(number);
    if (heard == 0) return;
    SignalAll(heard == number ? send : heard);
    // Those that wait for others save, too.
    Report({.kind = ProcessReport::Kind::kStopping});
  }

  void WarnIfNobodyJoins() {
    constexpr std::chrono::seconds kLong(30);
    if (!begun_ || joined_ || Clock::now() - start_ < kLong) return;
    joined_ = true;
    SayAsLauncher(
        StrCat("no process has asked for a world of ranks: ", options_.command[0],
               " is not made for --elastic, or needs an option for it, as train_gpt needs "
               "--dist.elastic=true"));
  }

  void Begin() {
    begun_ = true;
    start_ = Clock::now();
    for (Slot& slot : slots_) Start(slot);
  }

  void Start(Slot& slot) {
    RankProcess::Options o =
        RankOptions(options_, slot.starts++, IndexOf(slot), options_.nproc, port_.port(), secret_);
    o.is_member = true;
    slot.again.reset();
    slot.begun.clear();
    slot.deaf = false;
    slot.process = std::make_unique<RankProcess>(o);
    Report({.kind = ProcessReport::Kind::kStarted, .slot = IndexOf(slot), .text = address_});
  }

  void StartAgain(Slot& slot) {
    if (!slot.again || Clock::now() < *slot.again || Ends() || !OthersLive()) return;
    Restart(slot);
  }

  void Restart(Slot& slot) {
    if (restarts_ >= options_.max_restarts) return;
    ++restarts_;
    SayAsLauncher(StrCat("starting process ", NumberOf(slot), " again (restart ", restarts_,
                         " of at most ", options_.max_restarts, ")"));
    try {
      Start(slot);
    } catch (const std::exception& e) {  // the others go on
      SayAsLauncher(e.what());
      slot.again = Clock::now() + Pause(slot);
    }
  }

  // Before the next start of a process that failed by itself: longer each time.
  static std::chrono::seconds Pause(Slot& slot) {
    constexpr int kMostDoublings = 5;
    return kPauseAfterError * (1 << std::min(slot.errors++, kMostDoublings));
  }

  void Reap(Slot& slot) {
    if (!Runs(slot)) return;
    const RankProcess& p = *slot.process;
    slot.process->Reap();
    if (p.running()) return;
    const bool over = !p.failed() || p.stopped();
    over_ |= over;
    finished_ |= !p.failed();
    Report({.kind = over ? ProcessReport::Kind::kOver : ProcessReport::Kind::kEnded,
            .slot = IndexOf(slot),
            .text = p.Ending()});
    if (Ends()) return;
    // What all refuse is said once, at the end, in the words of the one that was refused itself.
    slot.refused = p.is_usage_error();
    if (slot.refused && (refusal_.empty() || p.message().size() < refusal_.size())) {
      refusal_ = p.message();
    }
    SayAsLauncher(StrCat("process ", NumberOf(slot), " ", p.Ending(),
                         p.message().empty() || slot.refused ? "" : ": " + p.message()));
    if (!cause_ || cause_->consequence) cause_ = {p.exit_code(), p.is_consequence()};
    if (slot.refused || restarts_ >= options_.max_restarts) return CheckEnough();
    if (p.signaled()) slot.errors = 0;
    slot.again = Clock::now() + (p.signaled() ? std::chrono::seconds(0) : Pause(slot));
    // All that had the run have been killed: it goes on from its checkpoint.
    if (!p.signaled() || !coordinator_ || coordinator_->living() > 0) return;
    for (Slot& other : slots_) {
      if (!Runs(other) && !other.refused) Restart(other);
    }
  }

  // One that was stopped (SIGSTOP) is lost to its world, and to one that is about to meet as well,
  // where no rank can tell.
  void KillStopped(Slot& slot) {
    if (!Runs(slot) || stop_time_.count() == 0 || !IsSuspended(slot.process->pid())) {
      slot.suspended_since.reset();
      return;
    }
    if (!slot.suspended_since) slot.suspended_since = Clock::now();
    if (Clock::now() - *slot.suspended_since < stop_time_) return;
    SayAsLauncher(
        StrCat("process ", NumberOf(slot), " has been stopped for dist.heartbeat, and is killed"));
    slot.process->Signal(SIGKILL);
  }

  // Ends a run that cannot go on, as far as this machine can tell.
  void CheckEnough() {
    if (!coordinator_ || coordinator_->living() >= coordinator_->least()) return;
    for (const Slot& slot : slots_) {
      if (slot.again) return;
    }
    if (options_.nnodes > 1 && coordinator_->living() > 0) return;  // others may come
    const std::string reason =
        StrCat("only ", coordinator_->living(), " of at least ", coordinator_->least(),
               " processes are left, and none is started any more (--max_restarts)");
    if (coordinator_->living() > 0) SayAsLauncher(reason);
    coordinator_->Refuse(reason);
  }

  // What has happened, to the one that decides.
  void Report(const ProcessReport& report) {
    if (coordinator_) {
      coordinator_->Hear(0, report);
    } else {
      links_->Send(0, ToText(report));
    }
  }

  // An order, to the machine that it is for.
  void Give(int node, const ProcessOrder& order) {
    if (node == 0) {
      Obey(order);
    } else if (links_) {
      links_->Send(node, ToText(order));
    }
  }

  void Obey(const ProcessOrder& order) {
    if (order.kind == ProcessOrder::Kind::kOver) {
      over_ = true;
      finished_ |= order.text.empty();
      return;
    }
    if (static_cast<size_t>(order.slot) >= slots_.size()) return;
    const Slot& slot = slots_[static_cast<size_t>(order.slot)];
    if (!Runs(slot)) return;
    if (order.kind == ProcessOrder::Kind::kTell) {
      SendLine(slot.process->member().fd(), order.text);
      return;
    }
    SayAsLauncher(StrCat("process ", NumberOf(slot), " does not answer the others, and is killed"));
    slot.process->Signal(SIGKILL);
  }

  void HearOthers() {
    for (const LauncherLinks::News& news : links_->Take()) {
      if (news.gone) {
        HearOfLoss(news);
      } else if (!coordinator_ && news.text.empty()) {
        Begin();
      } else {
        try {
          coordinator_ ? coordinator_->Hear(news.node, ReportOf(news.text))
                       : Obey(OrderOf(news.text));
        } catch (const std::exception& e) {
          SayAsLauncher(StrCat("machine ", news.node, " sends what no launcher does: ", e.what()));
        }
      }
    }
  }

  void HearOfLoss(const LauncherLinks::News& news) {
    if (coordinator_) {
      if (!Ends()) SayAsLauncher(StrCat("machine ", news.node, " has gone: ", news.text));
      coordinator_->Lose(news.node, StrCat("went with machine ", news.node));
      return;
    }
    gone_ = true;
    if (Ends()) return;
    // The others go on without this machine, whose processes must not write any more.
    const std::string first = StrCat("the first machine, at ", options_.master_addr);
    SayAsLauncher(StrCat(first, news.refused ? ", refuses this one: " : ", has gone: ", news.text));
    over_ = true;
    cause_ = {.exit_code = 1};
    SignalAll(SIGKILL);
  }

  void SignalAll(int number) const {
    for (const Slot& slot : slots_) {
      if (Runs(slot)) slot.process->Signal(number);
    }
  }

  // Waits until something happens or the next tick. Returns whether nobody reads the output.
  bool Wait() {
    std::vector<pollfd> fds;
    std::vector<RankProcess*> processes;
    if (links_) fds.push_back({links_->fd(), POLLIN, 0});
    for (const Slot& slot : slots_) {
      processes.push_back(slot.process.get());
      if (Runs(slot) && !slot.deaf) fds.push_back({slot.process->member().fd(), POLLIN, 0});
    }
    constexpr int kTickMs = 100;
    const bool is_closed = AwaitOutput(signals_, processes, std::move(fds), kTickMs,
                                       /*ends=*/insistence_.signal() != 0);
    for (Slot& slot : slots_) {
      if (slot.process) Listen(slot);
    }
    return is_closed;
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
        const MemberReady ready = ReadyOf(TryParseJson(*line).at("ready"));
        joined_ = true;
        stop_time_ = std::chrono::milliseconds(ready.stop_ms);
        Report({.kind = ProcessReport::Kind::kReady, .slot = IndexOf(slot), .ready = ready});
      } catch (const std::exception&) {  // the program may have written anything there
      }
    }
  }

  int End() const {
    if (!refusal_.empty()) SayAsLauncher(refusal_);
    if (const int number = insistence_.signal()) return 128 + number;
    for (const Slot& slot : slots_) {
      if (slot.process && slot.process->stopped()) return slot.process->exit_code();
    }
    const bool others = coordinator_ && coordinator_->over() && !coordinator_->refused();
    if (finished_ || others) return 0;
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
  std::string address_;                     // of this machine, for the ranks of others
  std::optional<Coordinator> coordinator_;  // on the first machine
  std::vector<Slot> slots_;
  Insistence insistence_;
  std::string refusal_;
  Clock::time_point start_;
  bool joined_ = false;  // a process has asked for a world
  int restarts_ = 0;
  std::chrono::milliseconds stop_time_{0};                               // MemberReady::stop_ms
  bool begun_ = false, over_ = false, finished_ = false, gone_ = false;  // gone: the first machine
  std::optional<Cause> cause_;
  std::optional<LauncherLinks> links_;  // of several machines
};

}  // namespace

int LaunchElastically(const LaunchOptions& options) { return ElasticRanks(options).Run(); }

}  // namespace lockstep::dist
