// A run's state in the memory of its hosts, for elastic runs whose ranks have different parts of
// it.
#pragma once

#include <array>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/stream.h"
#include "dist/launch/members.h"
#include "dist/process_group.h"
#include "models/checkpoint/checkpoint.h"

namespace lockstep::models {

// After each step, every rank copies its part of the weights, the optimizer's state and the buffers
// to its host's memory, and, if no other rank has the same part, to that of another rank, on
// another machine where there is one. This happens while the next step computes, and is complete
// before its update: so all ranks have a step when the first one makes the next. Since a step may
// end on some ranks and not on others, each keeps the copies of two steps.
//
// The processes of the next world, however many, find the newest step of which they have all parts
// (dist::NewestWhole), bring its tensors together, one at a time, and each takes its part of them.
// What a rank has in its model and optimizer is not used again, and may be of an unfinished step.
//
//   const TrainerState* state = copies.Agree(group, began, &lost);  // in each world, by all ranks
//   if (state) copies.Load(group, model), copies.Load(group, optimizer);
//   const auto in_world = copies.Enter(group, epoch, parts);
//   ... copies.Copy(state, model, optimizer) after each step, and Confirm() before each update
//
// For use by one thread.
class StateCopies {
 public:
  // `device`: of the model.
  explicit StateCopies(Device device) : device_(device), copied_(device) {}
  StateCopies(const StateCopies&) = delete;
  StateCopies& operator=(const StateCopies&) = delete;

  // What this process has, for MemberReady; and the newest step among it; -1: none.
  std::vector<dist::HeldParts> held() const;
  int64_t step() const;

  // Collective; a null group means a single rank. Chooses the step to go on from, and returns what
  // a checkpoint of it would say. Null if the processes have all parts of none: all then forget
  // what they have, and if it was newer than step `began`, with which the run began (-1: this
  // process does not know), `lost` says which part is gone.
  const TrainerState* Agree(dist::ProcessGroup* group, int64_t began, std::string* lost);
  // Collective, after Agree. The values of that step, for a model and an optimizer of any layout.
  void Load(dist::ProcessGroup* group, Gpt& model) const;
  void Load(dist::ProcessGroup* group, optim::Optimizer& optimizer) const;

  // Waits for what is being copied, or gives it up.
  struct Leave {
    void operator()(StateCopies* copies) const noexcept;
  };
  using InWorld = std::unique_ptr<StateCopies, Leave>;
  // Collective. Begins to copy in a world, until the result ends. `group`: of all its ranks, on the
  // host, which nothing else uses. `parts`: of each rank, the number of its part, from 0.
  InWorld Enter(dist::ProcessGroup* group, int64_t epoch, const std::vector<int>& parts);
  // Begins to copy. Model and optimizer may change on the current stream once it returns. Throws
  // OutOfMemoryError.
  void Copy(const TrainerState& state, const Gpt& model, const optim::Optimizer& optimizer);
  // Collective. Returns once all ranks have all copies. Throws CollectiveError.
  void Confirm();

  // What it takes of the host's memory, if this rank's part has so many bytes. `alone`: no other
  // rank has the same part.
  static int64_t HostBytes(int64_t part, bool alone) { return (alone ? 4 : 2) * part; }

 private:
  struct Version {
    dist::HeldParts held;  // of step -1: nothing
    TrainerState state;
    Tensor own, other;    // bytes on the host
    NamedTensors pieces;  // slices of these, by the names of AddPart
  };
  bool passes_on() const { return next_ >= 0; }
  void CopyOwn(Version& version, const Gpt& model, const optim::Optimizer& optimizer) const;
  void PassOn(Version& version);
  void Meet(const Version& version);
  void Complete();
  Tensor Whole(dist::ProcessGroup* group, const std::string& name, DType dtype,
               const Shape& shape) const;

  const Device device_;
  std::array<Version, 2> versions_;
  int confirmed_ = -1;                 // of these, the newest that all ranks are known to have
  std::optional<TrainerState> state_;  // what Agree has chosen, and what this process has of it
  std::multimap<std::string, std::pair<std::string, Tensor>> chosen_;

  // ---- In a world ----
  dist::ProcessGroup* group_ = nullptr;
  int64_t epoch_ = 0;
  int of_ = 1, part_ = 0, others_part_ = 0;
  int next_ = -1, previous_ = -1;     // ranks to whom, and from whom, parts are passed; -1: none
  std::optional<std::string> index_;  // of what the previous rank has
  ::lockstep::Event copied_;
  Version* copying_ = nullptr;
  std::future<void> work_;
};

}  // namespace lockstep::models
