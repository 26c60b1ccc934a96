// Which processes form the next world of an elastic run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::dist {

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
// their step and come. Rank 0 is one that has come furthest: the others take its state over.
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
  // begins from a checkpoint does so without the processes that have not come.
  std::map<int, MemberPlace> Form(bool patient = true);
  // However few there are, a world is formed from now on: the run is to save its state and stop.
  void AcceptAny() { least_ = first_ = 1; }
  // Condemns those of the world that have not left it, while others have.
  void CondemnRemaining();
  // Whether some have left the world, and not all.
  bool is_being_left() const;
  // The members of the world that are to leave it after their step, since others wait; each once.
  std::vector<int> Summon();
  // The members that were lost to others of their world, but live: they are to be killed, since
  // they may wake up and write to the run's files. Each once.
  std::vector<int> Condemn();

  int64_t epoch() const { return epoch_; }
  int living() const { return static_cast<int>(members_.size()); }

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

  int least_, first_;
  int64_t epoch_ = 0;
  std::map<int, Member> members_;
  std::vector<std::string> news_;
};

}  // namespace lockstep::dist
