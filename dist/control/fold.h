// Agreement among the ranks of a group, along a tree: barriers, gathers, verdicts.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/control/control_plane.h"

namespace lockstep::dist {

// All ranks of the group bring a text; the texts are combined up the tree of the group's ranks, and
// what comes out goes down to all. A rank sends and receives one message for each neighbour in that
// tree, of as many bytes as `combine` makes them. Folds follow each other in the same order on
// every rank. It is an entry of the control plane, and costs no thread and no connection.
class Fold {
 public:
  // Combines the texts of two runs of ranks, where the first run precedes the second; must be
  // associative. Called on the loop's thread.
  using Combine = std::function<std::string(const std::string& first, const std::string& second)>;
  // Called on the loop's thread with what comes out.
  using Done = std::function<void(const std::string& result)>;

  // `members`: the group's ranks, ascending, with the plane's among them. `name` is the group's,
  // the same on each.
  Fold(ControlPlane& plane, const std::string& name, std::vector<int> members, Combine combine,
       int fan_out = RankTree::kFanOut);
  ~Fold();

  // Brings this rank's text to the next fold; returns at once. One thread at a time.
  void Bring(std::string text, Done done);
  // Returns what comes out; nullopt once `wait`, which is called every now and then, says no.
  std::optional<std::string> Run(std::string text, const std::function<bool()>& wait);

 private:
  struct Round {
    std::map<int, std::string> texts;  // by index among the members
    Done done;
  };
  void OnMessage(int from, uint64_t number, const std::string& body);
  void Advance(uint64_t number);
  void Finish(uint64_t number, const std::string& result);

  ControlPlane& plane_;
  const uint64_t topic_;
  const std::vector<int> members_;
  const RankTree tree_;
  const int index_;
  const std::vector<int> children_;
  const Combine combine_;
  uint64_t next_ = 0;  // of the caller
  // On the loop's thread.
  std::map<uint64_t, Round> rounds_;
};

}  // namespace lockstep::dist
