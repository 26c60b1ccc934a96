// The graph that forward records and backward runs.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/autograd/grad_mode.h"
#include "core/autograd/gradients.h"
#include "core/autograd/leaf.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep {

// Where a tensor's gradient goes: to output `output` of `node`, to `leaf`, or nowhere.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
  std::shared_ptr<Leaf> leaf;
  // What the tensor is computed from left out what belongs to training: Evaluated of
  // core/step_state.h.
  bool evaluated = false;

  static std::shared_ptr<Edge> To(std::shared_ptr<Leaf> leaf) {
    return std::make_shared<Edge>(Edge{nullptr, 0, std::move(leaf)});
  }
  bool defined() const { return node != nullptr || leaf != nullptr; }
};

// Runs `before` ahead of the first of the nodes it is attached to, and `after` once every node
// created since `first_sequence` has run. Module uses it for its backward hooks.
struct BackwardRange {
  uint64_t first_sequence = 0;
  std::function<void()> before, after;
};

// One recorded operation. Sequence numbers grow in the order of creation, so descending sequence is
// a topological order.
class Node {
 public:
  explicit Node(const char* name);
  virtual ~Node();  // iterative: graphs may be deeper than the stack
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Gives the gradient of each input that needs one, even if it is zero. Runs with recording off.
  virtual void Backward(Gradients& grads) = 0;
  // Whether computing the gradients of some inputs, and in a second call those of the others, costs
  // no more than computing all at once. If so, those of observed leaves come first, and their
  // observers are notified before the others are computed.
  virtual bool SplitsByInput() const { return false; }

  const char* name() const { return name_; }
  uint64_t sequence() const { return sequence_; }
  const std::vector<Edge>& inputs() const { return inputs_; }
  const TensorSpec& InputSpec(size_t i) const { return input_specs_[i]; }
  // As the node that made input i declared it; null for a leaf.
  const TensorSpec* MadeAs(size_t i) const {
    const Edge& edge = inputs_[i];
    return edge.node ? &edge.node->outputs_[static_cast<size_t>(edge.output)].spec : nullptr;
  }
  // Tensor::RegisterHook's, of the gradient of output `output`.
  HookHandle AddHook(int output, GradHook hook) {
    return AddGradHook(outputs_[static_cast<size_t>(output)].hooks, std::move(hook));
  }
  void AddRange(std::shared_ptr<const BackwardRange> range) { ranges_.push_back(std::move(range)); }
  bool released() const { return released_; }

 protected:
  // Keeps a tensor for Backward, after which it is dropped unless the graph is retained. It may be
  // undefined. `what` names it in errors: "the input of gelu".
  SavedTensor& Save(const Tensor& tensor, const char* what) { return saved_.Add(tensor, what); }
  SavedTensors& saved() { return saved_; }
  // Drops what else forward kept alive.
  virtual void Release() {}

 private:
  friend class BackwardRun;
  friend void Record(std::shared_ptr<Node>, std::span<const Tensor* const>,
                     std::span<Tensor* const>);

  struct Output {
    TensorSpec spec;
    std::shared_ptr<GradHooks> hooks = nullptr;  // null: none yet

    bool has_hooks() const { return hooks != nullptr && !hooks->empty(); }
  };
  const char* name_;
  SavedTensors saved_;
  uint64_t sequence_;
  bool released_ = false;
  std::vector<Edge> inputs_;
  std::vector<TensorSpec> input_specs_;
  std::vector<Output> outputs_;
  std::vector<std::shared_ptr<const BackwardRange>> ranges_;
};

// A lower bound of the sequence number of any thread's next node.
uint64_t NextSequence();

// True if recording is on and any of the tensors requires a gradient (undefined ones do not).
bool NeedsGrad(std::initializer_list<const Tensor*> inputs);
bool NeedsGrad(std::span<const Tensor* const> inputs);

// Connects a node: edges to the inputs (an undefined input is no edge), outputs become its results.
// Without a node, where nothing is to be recorded, only hands on what is Evaluated.
void Record(std::shared_ptr<Node> node, std::span<const Tensor* const> inputs,
            std::span<Tensor* const> outputs);
inline void Record(std::shared_ptr<Node> node, std::initializer_list<const Tensor*> inputs,
                   std::initializer_list<Tensor*> outputs) {
  Record(std::move(node), std::span(inputs.begin(), inputs.size()),
         std::span(outputs.begin(), outputs.size()));
}

// What an operation keeps for its backward, which may be undefined, and what it is in errors: "the
// input of gelu".
struct Kept {
  Tensor tensor;
  const char* what;
};

// The node of RecordOp.
using OpBackward = std::function<void(SavedTensors& saved, Gradients& grads)>;
std::shared_ptr<Node> MakeOpNode(const char* name, std::span<const Kept> keep, OpBackward backward);

// Records an operation without a class of its own, if one of its inputs requires a gradient.
// `backward(saved, grads)` is its Node::Backward, where saved[i] is what was kept i-th. It is
// dropped together with that. What it captures is not checked for having been overwritten.
template <class F>
void RecordOp(const char* name, std::span<const Tensor* const> inputs,
              std::span<Tensor* const> outputs, std::span<const Kept> keep, const F& backward) {
  Record(NeedsGrad(inputs) ? MakeOpNode(name, keep, backward) : nullptr, inputs, outputs);
}
template <class F>
void RecordOp(const char* name, std::initializer_list<const Tensor*> inputs,
              std::initializer_list<Tensor*> outputs, std::initializer_list<Kept> keep,
              const F& backward) {
  RecordOp(name, std::span(inputs.begin(), inputs.size()),
           std::span(outputs.begin(), outputs.size()), std::span(keep.begin(), keep.size()),
           backward);
}

}  // namespace lockstep
