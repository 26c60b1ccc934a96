// Recomputing in backward what forward does not keep.
#pragma once

#include <functional>
#include <initializer_list>
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

// Activation checkpointing: Chen et al., "Training deep nets with sublinear memory cost" (2016).
// nn::Recompute does it for a module.
//
// Within its lifetime, nodes do not keep what a whole forward makes, or the results of single
// operations. A node that needs one of these has the forward or the operation run again, on the
// same inputs, weights, step, random numbers and choices (KeepChoice). So gradients have the same
// bits, if what runs depends on nothing else. A forward runs again once per backward, for all of
// its nodes, each of which then drops its own; an operation runs again for each node that needs its
// result.
//
// Throws Error in backward if an input or anything else that was saved has been overwritten since,
// or if a forward saves other tensors the second time.
class RecomputeScope {
 public:
  // Runs the forward on tensors equal to `inputs`, some of which may be undefined, as leaves. Its
  // result is not used.
  using Again = std::function<void(std::vector<Tensor> inputs)>;

  // A forward runs within the scope, and nothing that it makes itself is kept; what is older than
  // the scope is alive anyway. `of`: whose forward it is, for Start. `stops_early`: `again` is left
  // by an exception once all that nodes await is there, which spares the last operations. Nothing
  // between may catch what it does not know.
  RecomputeScope(const void* of, std::span<const Tensor> inputs, Again again,
                 bool stops_early = false);
  // The results of these operations, which take part by OfferRecompute, are not kept where they run
  // within the scope.
  explicit RecomputeScope(std::vector<std::string> ops);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

  // To be called with each tensor of a whole forward's result.
  void AddOutput(const Tensor& output);

  class Start;

 private:
  friend class Decisions;
  friend bool Recomputing();
  friend Tensor KeepChoice(const std::function<Tensor()>&);
  template <class F>
  friend void OfferRecompute(std::string_view op, const Tensor& result,
                             std::initializer_list<Kept> from, const F& again);
  // The scope whose hooks apply on this thread, if it names the operation.
  static RecomputeScope* Recomputes(std::string_view op);
  void Offer(const Tensor& result, std::initializer_list<Kept> from,
             std::function<Tensor(std::span<const Tensor> from)> again);
  struct Segment;  // a whole forward
  struct Slot;
  struct Place;
  struct Operation;
  struct Operations;
  struct Finished;
  struct Rerun;
  static thread_local RecomputeScope* innermost;  // of this thread
  static thread_local Rerun* rerun;               // the innermost of this thread

  // One of the two is null.
  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Operations> operations_;
  SavedTensorHooks hooks_;
  RecomputeScope* previous_;
};

// The first operation of a forward that needs its inputs for nothing else, where one of its results
// can stand for them and is smaller: of a residual stream and the branch to be added, the sum. If
// this thread's innermost RecomputeScope is that of the same forward, what is saved within its
// lifetime is kept, and the forward runs again from what Replace was given.
class RecomputeScope::Start {
 public:
  explicit Start(const void* of);
  ~Start();
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;

  // As many as the inputs: from these the first operation makes the same results.
  void Replace(std::span<const Tensor> by);

 private:
  std::shared_ptr<Segment> segment_;  // in forward; null: nothing to do
  std::optional<SavedTensorHooks::Pause> pause_;
  std::optional<SavedTensorHooks> ignore_;  // where it runs again: nothing is missing
};

// For an operation that has made its result: if the scope whose hooks apply on this thread names
// it, nodes that save the result, a contiguous tensor that fills its storage, have again(from)
// compute it anew, in any shape of as many elements. `from` should be what the operation's node
// saves anyway: it stays alive as long as others need the result.
template <class F>
void OfferRecompute(std::string_view op, const Tensor& result, std::initializer_list<Kept> from,
                    const F& again) {
  if (RecomputeScope* const scope = RecomputeScope::Recomputes(op))
    scope->Offer(result, from, again);
}

// Whether this thread runs a forward again to recompute what it saved. The hooks of modules do not
// run then, and a forward must not update its module's state (running statistics, counters) again.
bool Recomputing();

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
  template <class F>
  static void ForEach(const F& f);

  std::optional<StepState> step_;  // a copy, once random numbers were drawn
  bool copied_ = false;
  std::vector<uint64_t> sites_;  // these two in the order in which they were handed out
  std::vector<Tensor> choices_;
};

}  // namespace lockstep
