// Who says what: a comparison of texts along the tree of a group's ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/control/control_plane.h"
#include "dist/control/fold.h"

namespace lockstep::dist {

// Ranks of the world, ascending, that say the same.
struct Party {
  std::string text;
  std::vector<int> ranks;
};

// Merges who says what in two runs of ranks, the first before the second, on the way up the tree.
std::string MergeTexts(const std::string& first, const std::string& second);

// While all ranks say the same, each sends and receives one short message for each neighbour in the
// tree, whatever their number. Costs no thread and no connection. Ranks must make the same
// comparisons in the same order.
class Comparison {
 public:
  // `name`: the same on all `members` (ascending), and new.
  Comparison(std::shared_ptr<ControlPlane> control, const std::string& name,
             std::vector<int> members);

  // The parties, by their first ranks, at most 16 of them; nullopt once `wait` (called every now
  // and then) says no.
  std::optional<std::vector<Party>> Run(const std::string& text, const std::function<bool()>& wait);
  // Returns at once; `done` is called on the control plane's thread when all ranks have come.
  void Bring(const std::string& text, std::function<void()> done);

 private:
  const std::shared_ptr<ControlPlane> control_;
  const std::vector<int> members_;
  const int rank_;  // among them
  Fold fold_;
};

}  // namespace lockstep::dist
