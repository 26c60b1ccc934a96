// Runs backward.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "core/autograd/node.h"

namespace lockstep {

// Known before the first node runs.
struct BackwardPlan {
  std::vector<std::shared_ptr<Node>> nodes;   // in the order in which they will run
  std::vector<std::shared_ptr<Leaf>> leaves;  // in the order in which they will become ready
  bool default_root_grad = false;             // a root's gradient was not given: it is 1
};

// Leaf gradients that a backward left for later (zero-bubble pipelines run input gradients first).
class DeferredGradients {
 public:
  DeferredGradients();
  DeferredGradients(DeferredGradients&&) noexcept;
  DeferredGradients& operator=(DeferredGradients&&) noexcept;
  ~DeferredGradients();
  // Computes them, in the order backward would have; leaves become ready now, and observers of the
  // backwards they come from see the end, or the error, of those. Empty afterwards.
  void Run();
  bool empty() const;

 private:
  friend class BackwardRun;
  struct Item;
  std::vector<Item> items_;
};

struct BackwardOptions {
  bool retain_graph = false;                 // keep what forward saved, for another backward
  std::vector<BackwardObserver*> observers;  // besides those of the leaves
  // Leaves for which it returns true are computed by `deferred` later, not now.
  std::function<bool(const Leaf&)> defer;
  DeferredGradients* deferred = nullptr;
};

// Whether this thread is in a Backward, as a forward is that recomputes activations.
bool InBackward();

// Adds the gradients of sum_i <roots[i], root_grads[i]> to the leaves. A root gradient has its
// root's shape, dtype and device; where it is undefined the root must have one element, and it
// is 1. The order of all additions is fixed by the graph. Throws Error if the graph was released or
// a saved tensor was overwritten, and ArgumentError while another thread is in a backward of one of
// the leaves.
void Backward(std::span<const Tensor> roots, std::span<const Tensor> root_grads,
              const BackwardOptions& options = {});

// The usual case: one root. An undefined gradient is 1, for a scalar loss.
void Backward(const Tensor& root, const Tensor& root_grad = {},
              const BackwardOptions& options = {});

// Whether the backward that this thread is in keeps what forward saved for another one. If not, a
// node may write to what it alone still holds. True outside of backward.
bool GraphIsRetained();

// Whether a node may write its result over this gradient, which it was given: nobody else holds it,
// it is contiguous, and no other run of the node will read it.
bool MayOverwrite(const Tensor& grad);

// The order backward would follow.
BackwardPlan PlanBackward(std::span<const Tensor> roots);

}  // namespace lockstep
