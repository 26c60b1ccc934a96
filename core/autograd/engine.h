// The engine that runs backward.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/autograd/node.h"

namespace lockstep {

// Known before the first node runs.
struct BackwardPlan {
  std::vector<std::shared_ptr<Node>> nodes;   // in the order they will run
  std::vector<std::shared_ptr<Leaf>> leaves;  // in the order they will become ready
  bool default_root_grad = false;             // some root gradient is the default, 1
};

// Leaf gradients that a backward deferred (zero-bubble pipelines run input gradients first).
class DeferredGradients {
 public:
  DeferredGradients();
  DeferredGradients(DeferredGradients&&) noexcept;
  DeferredGradients& operator=(DeferredGradients&&) noexcept;
  ~DeferredGradients();
  // Computes them in backward's order. Leaves become ready now, and the observers of the original
  // backwards see their end or error; backward hooks of modules have run by then. Empty afterwards.
  void Run();
  bool empty() const;

 private:
  friend class BackwardRun;
  struct Item;
  std::vector<Item> items_;
};

struct BackwardOptions {
  bool retain_graph = false;                 // keep what forward saved, for another backward
  bool evaluation = false;                   // dropout did nothing in forward, on purpose
  std::vector<BackwardObserver*> observers;  // besides those of the leaves
  // Leaves for which it returns true are left to `deferred`.
  std::function<bool(const Leaf&)> defer;
  DeferredGradients* deferred = nullptr;
};

// Whether this thread is in a Backward, which includes forwards that recompute activations, but not
// DeferredGradients::Run.
bool InBackward();

// Adds the gradients of sum_i <roots[i], root_grads[i]> to the leaves. A root gradient has its
// root's shape, dtype and device. If undefined, it is 1, and the root must have one element. The
// order of all additions is fixed by the graph. Throws Error if the graph was released or a saved
// tensor was overwritten, and ArgumentError while another thread is in a backward of one of the
// leaves, if the step's StepWatch refuses it, or if it goes through what is Evaluated
// (core/step_state.h) without BackwardOptions::evaluation and is not within another Backward.
void Backward(std::span<const Tensor> roots, std::span<const Tensor> root_grads,
              const BackwardOptions& options = {});

// The usual case, one root. An undefined gradient is 1, for a scalar loss.
void Backward(const Tensor& root, const Tensor& root_grad = {},
              const BackwardOptions& options = {});

// Whether this thread's backward keeps what forward saved for another one. If not, a node may write
// to what only it still holds. True outside of backward.
bool GraphIsRetained();

// Whether a node may overwrite this gradient, which it was given, with its result: nobody else
// holds it, it is contiguous, and no other run of the node will read it.
bool MayOverwrite(const Tensor& grad);

}  // namespace lockstep
