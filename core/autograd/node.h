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

// Runs `before` ahead of the first of the nodes it hangs on, and `after` once every node created
// since `first_sequence` has run. Module hangs its backward hooks here.
struct BackwardRange {
  uint64_t first_sequence = 0;
  std::function<void()> before, after;
};

// One recorded operation. Sequence numbers grow with creation, hence an order by descending
// sequence is topological.
class Node {
 public:
  explicit Node(const char* name);
  virtual ~Node();  // iterative: graphs may be deeper than the stack
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // grads: one per output, never undefined. For each input i with needs[i], computes its gradient
  // into sinks[i], also where it is zero; others are left alone. Runs with recording off.
  virtual void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                        std::span<GradSink> sinks) = 0;
  // Whether gradients of some inputs, and in a second call those of the others, cost no more than
  // all in one. Then those of leaves that an observer waits for come first, and it hears of them
  // before the others are computed.
  virtual bool SplitsByInput() const { return false; }
  // Drops what forward saved; called after Backward unless the graph is retained.
  virtual void Release() = 0;

  const char* name() const { return name_; }
  uint64_t sequence() const { return sequence_; }
  const std::vector<Edge>& inputs() const { return inputs_; }
  void AddRange(std::shared_ptr<const BackwardRange> range) { ranges_.push_back(std::move(range)); }
  bool released() const { return released_; }

 private:
  friend class BackwardRun;
  friend class GradSink;
  friend void Record(std::shared_ptr<Node>, std::span<const Tensor* const>,
                     std::span<Tensor* const>);

  struct OutputInfo {
    Shape shape;
    DType dtype;
    Device device;
  };
  const char* name_;
  uint64_t sequence_;
  bool released_ = false;
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

// The sequence number the next node of any thread will get at the earliest.
uint64_t NextSequence();

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
