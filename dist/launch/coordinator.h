// The part of the launchers of an elastic run that decides, on the first machine.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "dist/launch/members.h"

namespace lockstep::dist {

// What happens to a process of a machine, and what is to happen to it. A process is known by its
// machine and its slot there.
struct ProcessReport {
  // kStopping: the machine's processes were told to stop. kOver: the process has finished, or
  // stopped, the run.
  enum class Kind { kStarted, kReady, kEnded, kStopping, kOver };
  Kind kind = Kind::kStarted;
  int slot = 0;
  std::string text{};  // the machine's address; how it ended
  MemberReady ready{};
};
struct ProcessOrder {
  // kOver: of all processes of the machine; the text is why, if the run cannot go on.
  enum class Kind { kTell, kKill, kOver };
  Kind kind = Kind::kTell;
  int slot = 0;
  std::string text{};  // a line for the process
};
// For other machines. Parsing throws an exception for what no launcher writes.
std::string ToText(const ProcessReport& report);
std::string ToText(const ProcessOrder& order);
ProcessReport ReportOf(const std::string& text);
ProcessOrder OrderOf(const std::string& text);

class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;
  // How long a world that begins from a checkpoint waits for all processes.
  static constexpr std::chrono::seconds kPatience{30};

  // Gives orders by order(machine, what).
  Coordinator(int least, int first, std::function<void(int node, const ProcessOrder&)> order)
      : members_(least, first), order_(std::move(order)) {}

  void Hear(int node, const ProcessReport& report);
  // A machine has gone, with all its processes.
  void Lose(int node, const std::string& how);
  // Forms worlds, and summons and kills who stands in their way. To be called after what was heard,
  // and now and then.
  void Decide();
  // The run cannot go on, for this reason: all are told.
  void Refuse(const std::string& reason);

  // Whether a process has finished or stopped the run, or it was refused.
  bool over() const { return over_; }
  bool refused() const { return refused_; }
  int living() const { return members_.living(); }
  int least() const { return members_.least(); }

 private:
  void Tell(int member, const std::string& line);
  void TellAll(const std::string& line);
  void End(int member, const std::string& how);

  Members members_;
  const std::function<void(int, const ProcessOrder&)> order_;
  bool over_ = false, refused_ = false, told_ = false, stopping_ = false;
  std::string why_;                                 // it was refused
  std::map<int, int> nodes_;                        // of members
  std::optional<Clock::time_point> left_since_;     // some have left the world, and not all
  std::chrono::milliseconds leave_time_{0};         // MemberReady::leave_ms
  std::optional<Clock::time_point> waiting_since_;  // somebody is ready, and there is no new world
};

}  // namespace lockstep::dist
