// Which processes form the next world of an elastic run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::dist {

// Where ranks have different parts of a run's state: those parts, of `of` that are numbered from 0,
// that a process has in its memory as they were after a step in one world. It has its own, and may
// have copies of others'.
struct HeldParts {
  int64_t epoch = 0, step = -1;
  int of = 1;
  std::vector<int> parts{};
};
// A step, and the epoch of a world that has made it or gone on from it. The larger one is newer.
using StateVersion = std::pair<int64_t, int64_t>;
// The newest version of which these processes together have all parts; none, if they have all parts
// of none.
std::optional<StateVersion> NewestWhole(std::span<const std::vector<HeldParts>> held);

// What a process says when it is in no world: because its last one has failed, or was left for
// another, or because it has just been started.
struct MemberReady {
  int64_t epoch = 0;        // of its last world; 0: it has not been in one
  int64_t step = -1;        // after which it could go on from its own memory; -1: it could not
  int port = 0;             // at which it would be rank 0, on its machine
  std::vector<int> lost{};  // ranks of its last world that stopped answering
  // How long a process may be stopped, and how long the others of a world may take to leave it
  // after the first; 0: for ever. The same for all.
  int64_t stop_ms = 20'000, leave_ms = 300'000;
  // The numbers of processes among which the run can be divided, ascending; empty: any. The same
  // for all.
  std::vector<int> sizes{};
  std::vector<HeldParts> held{};  // empty: it has all of the state after `step`, or nothing
};

// A process's place in a world.
struct MemberPlace {
  int64_t epoch = 0;
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string address{};  // of rank 0
  int port = 0;
  std::string news{};  // why there is a new world; the same for all
};

// The rules: a world is formed when all processes of the last one that still live are ready, and
// there are enough of them. Who was started later waits, and those in the world are told to finish
// their step and come. Rank 0 is one that has come furthest: the others take its state over. Where
// the run cannot be divided among all that are ready, the world is formed of as many as it can, who
// together have the whole state, and the others wait for another process.
// Nothing here waits, sends or starts anything.
class Members {
 public:
  // `least`: processes with which the run goes on. `first`: those that a world waits for which
  // begins from a checkpoint, or anew.
  Members(int least, int first) : least_(least), first_(first) {}

  // A process was started on a machine that others reach at the address.
  void Start(int member, int node, const std::string& address);
  // It has ended: "was killed by signal 9 (Killed)". Returns whether a world has lost it, in which
  // others may still be about to meet.
  bool End(int member, const std::string& how);
  // Ready again before its world has ended is no mistake: that is how one leaves it for another.
  void BeReady(int member, const MemberReady& ready);
  // The places of the next world, by member, if it can be formed; else none. Impatiently, one that
  // begins from a checkpoint does so without the processes that have not come, and one is formed
  // without some parts of the state.
  std::map<int, MemberPlace> Form(bool patient = true);
  // However few there are, a world is formed from now on: the run is to save its state and stop.
  void AcceptAny() { least_ = first_ = 1; }
  // Condemns those of the world that have not left it, while others have.
  void CondemnRemaining();
  // Whether some have left the world, and not all.
  bool is_being_left() const;
  // The members of the world that are to leave it after their step, since it can be larger with
  // those that wait; each once.
  std::vector<int> Summon();
  // The members that were lost to others of their world, but live: they are to be killed, since
  // they may wake up and write to the run's files. Each once.
  std::vector<int> Condemn();

  int64_t epoch() const { return epoch_; }
  int living() const { return static_cast<int>(members_.size()); }
  bool all_wait() const {  // for a world
    return living() > 0 && std::ranges::all_of(members_, [](auto& m) { return m.second.ready; });
  }
  // With fewer processes the run cannot go on.
  int least() const { return sizes_.empty() ? least_ : std::max(least_, sizes_.front()); }

 private:
  struct Member {
    int node = 0;
    std::string address{};
    bool ready = false, summoned = false, condemned = false;
    MemberReady last{};
    int64_t epoch = 0;  // of the world that it is in, or was in last
    int rank = -1;      // in that
  };
  bool MayForm(bool patient) const;
  int LargestWorld(int processes) const;
  std::vector<int> Choose(bool patient) const;

  int least_, first_;
  std::vector<int> sizes_;  // MemberReady::sizes
  int64_t epoch_ = 0;
  std::map<int, Member> members_;
  std::vector<std::string> news_;
};

}  // namespace lockstep::dist
