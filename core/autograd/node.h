// The graph that forward records and backward runs.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/autograd/grad_mode.h"
#include "core/autograd/grad_sink.h"

namespace lockstep {

// Where the gradient of a node's input goes: to output `output` of `node`, to `leaf`, or nowhere.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
  std::shared_ptr<Leaf> leaf;

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

  // grads: one per output, never undefined. For each input i with needs[i], writes its gradient to
  // sinks[i], even if it is zero; leaves the other sinks alone. Runs with recording off.
  virtual void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                        std::span<GradSink> sinks) = 0;
  // Whether computing the gradients of some inputs, and in a second call those of the others, costs
  // no more than computing all at once. If so, those of observed leaves come first, and their
  // observers are notified before the others are computed.
  virtual bool SplitsByInput() const { return false; }
  // Drops what forward saved; called after Backward unless the graph is retained.
  virtual void Release() = 0;

  const char* name() const { return name_; }
  uint64_t sequence() const { return sequence_; }
  const std::vector<Edge>& inputs() const { return inputs_; }
  // Tensor::RegisterHook's, of the gradient of output `output`.
  HookHandle AddHook(int output, GradHook hook) {
    return AddGradHook(outputs_[static_cast<size_t>(output)].hooks, std::move(hook));
  }
  void AddRange(std::shared_ptr<const BackwardRange> range) { ranges_.push_back(std::move(range)); }
  bool released() const { return released_; }
  // Whether NoteLeftOut was called just before it was made.
  bool follows_left_out() const { return follows_left_out_; }

 private:
  friend class BackwardRun;
  friend class GradSink;
  friend void Record(std::shared_ptr<Node>, std::span<const Tensor* const>,
                     std::span<Tensor* const>);

  struct OutputInfo {
    Shape shape;
    DType dtype;
    Device device;
    std::shared_ptr<GradHooks> hooks = nullptr;  // null: none yet

    bool has_hooks() const { return hooks != nullptr && !hooks->empty(); }
  };
  const char* name_;
  uint64_t sequence_;
  bool released_ = false, follows_left_out_;
  std::vector<Edge> inputs_;
  std::vector<OutputInfo> outputs_;
  std::vector<std::shared_ptr<const BackwardRange>> ranges_;
};

struct AutogradMeta {
  std::shared_ptr<Leaf> leaf;  // either a leaf,
  std::shared_ptr<Node> node;  // or output `output` of a node
  int output = 0;

  static std::shared_ptr<AutogradMeta> ForLeaf(std::shared_ptr<Leaf> leaf) {
    return std::make_shared<AutogradMeta>(AutogradMeta{std::move(leaf), nullptr, 0});
  }
};

// A lower bound of the sequence number of any thread's next node.
uint64_t NextSequence();

// A forward has left out what belongs to training (InTraining of core/step_state.h): the next node
// of this thread, which belongs to the same forward, remembers it. TakeLeftOut forgets it, and
// returns whether it was noted since the last node.
void NoteLeftOut();
bool TakeLeftOut();

// True if recording is on and any of the tensors requires a gradient (undefined ones do not).
bool NeedsGrad(std::initializer_list<const Tensor*> inputs);
bool NeedsGrad(std::span<const Tensor* const> inputs);

// Connects a node: edges to the inputs (an undefined input is no edge), outputs become its results.
void Record(std::shared_ptr<Node> node, std::span<const Tensor* const> inputs,
            std::span<Tensor* const> outputs);
inline void Record(std::shared_ptr<Node> node, std::initializer_list<const Tensor*> inputs,
                   std::initializer_list<Tensor*> outputs) {
  Record(std::move(node), std::span(inputs.begin(), inputs.size()),
         std::span(outputs.begin(), outputs.size()));
}

}  // namespace lockstep
