// Recomputing in backward what forward does not keep.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "core/step_state.h"
#include "core/tensor.h"

namespace lockstep {

// Whether this thread runs a forward again to recompute what it saved. The hooks of modules do not
// run then, and a forward must not update its module's state (running statistics, counters) again.
bool Recomputing();

// Activation checkpointing: Chen et al., "Training deep nets with sublinear memory cost" (2016).
// nn::Recompute does it for a module.
//
// A forward that runs within its lifetime keeps nothing for backward that it makes itself. The
// first node in need of it has the forward run again, on the same inputs, weights, step, random
// numbers and choices (KeepChoice); each node then drops its own. So gradients have the same bits,
// if the forward's result depends on nothing else. Backwards that retain the graph recompute once
// each.
//
// Throws Error in backward if an input or anything else that was saved has been overwritten since,
// or if the forward saves other tensors the second time.
class RecomputeScope {
 public:
  // Runs the forward on tensors equal to `inputs`, some of which may be undefined, as leaves. Its
  // result is not used.
  using Again = std::function<void(std::vector<Tensor> inputs)>;
  // `of`: whose forward it is, for RecomputeStart. `stops_early`: `again` is left by an exception
  // once all that nodes still await is there, which spares the last operations. Nothing between may
  // catch what it does not know.
  RecomputeScope(const void* of, std::span<const Tensor> inputs, Again again,
                 bool stops_early = false);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

  // To be called with each tensor of the forward's result.
  void AddOutput(const Tensor& output);

 private:
  friend class RecomputeStart;
  friend class Decisions;
  friend bool Recomputing();
  friend Tensor KeepChoice(const std::function<Tensor()>&);
  struct State;
  struct Slot;
  struct Saved;
  struct Finished;
  struct Rerun;
  static std::shared_ptr<State> Begin(const void* of, std::span<const Tensor> inputs, Again again,
                                      bool stops_early);
  static thread_local RecomputeScope* innermost;  // of this thread
  static thread_local Rerun* rerun;               // the innermost of this thread

  std::shared_ptr<State> state_;
  SavedTensorHooks hooks_;
  std::shared_ptr<const BackwardRange> range_;
  RecomputeScope* previous_;
};

// Returns make(), a tensor that is not written to afterwards. Where this thread runs a forward
// again to recompute what it saved, returns what the first run made instead: the experts of a
// token, for one, are kept, so that gradients belong to the experts that ran. The forward calls it
// the same number of times each time it runs; throws Error if not.
Tensor KeepChoice(const std::function<Tensor()>& make);

// What a forward decided and must not decide again: beside its choices, its step and its random
// numbers, for which core/step_state.cc calls these.
class Decisions {
 public:
  static void NoteDraw();  // random numbers are drawn from the current state
  static void NoteSite(uint64_t site);
  // The next site that was noted in the first run, where this thread runs a forward again.
  static std::optional<uint64_t> NextSite();

 private:
  friend class RecomputeScope;
  friend Tensor KeepChoice(const std::function<Tensor()>&);
  Decisions();

  std::optional<StepState> step_;  // as it was when random numbers were drawn first
  bool copied_ = false;
  std::vector<uint64_t> sites_;  // these two in the order in which they were handed out
  std::vector<Tensor> choices_;
};

// The first operation of a forward that needs its inputs for nothing else, where one of its results
// can stand for them and is smaller: of a residual stream and the branch to be added, the sum. If
// this thread's innermost RecomputeScope is that of the same forward, what is saved within its
// lifetime is kept, and the forward runs again from what Replace was given.
class RecomputeStart {
 public:
  explicit RecomputeStart(const void* of);
  ~RecomputeStart();
  RecomputeStart(const RecomputeStart&) = delete;
  RecomputeStart& operator=(const RecomputeStart&) = delete;

  // As many as the inputs: from these the first operation makes the same results.
  void Replace(std::span<const Tensor> by);

 private:
  std::shared_ptr<RecomputeScope::State> state_;  // in forward; null: nothing to do
  std::optional<SavedTensorHooks::Pause> pause_;
  std::optional<SavedTensorHooks> ignore_;  // where it runs again: nothing is missing
};

// Within its lifetime the results of the named operations are not kept where others save them:
// backward computes them again, with the same bits, from what the operations themselves save.
// Operations take part by offering it, in OfferRedo.
class RedoScope {
 public:
  explicit RedoScope(const std::vector<std::string>& ops);
  ~RedoScope();
  RedoScope(const RedoScope&) = delete;
  RedoScope& operator=(const RedoScope&) = delete;

 private:
  friend bool MayRedo(std::string_view op);
  friend void OfferRedo(const Tensor& result, std::function<Tensor()> redo);
  struct State;

  std::shared_ptr<State> state_;
  SavedTensorHooks hooks_;
  RedoScope* previous_;
};

// Whether the scope whose hooks apply on this thread names `op`. If so, the operation may offer its
// result, a contiguous tensor that fills its storage, with a function that computes it again. It
// should hold the tensors that it reads as SavedTensors, and only those that the operation's node
// saves anyway: it stays alive as long as others need the result.
bool MayRedo(std::string_view op);
void OfferRedo(const Tensor& result, std::function<Tensor()> redo);

}  // namespace lockstep
