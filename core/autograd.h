// What forward records and backward runs: leaves, nodes, saved tensors, gradient sinks.
#pragma once

#include <any>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

class Node;
class Leaf;
struct BackwardPlan;

// ---- Whether operations record. ----

bool GradEnabled();

// Within its scope, operations of this thread record nothing (or record again).
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool previous_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};

// ---- Where gradients go. ----

// Sees every backward in which a leaf it was added to takes part. This is what dist hangs on.
class BackwardObserver {
 public:
  virtual ~BackwardObserver() = default;
  virtual void OnBegin(const BackwardPlan&) {}  // before the first node; knows the leaf order
  virtual void OnLeafReady(Leaf&) {}            // once per backward, after the last accumulation
  virtual void OnEnd() {}                       // after the last node; may throw
  virtual void OnError() noexcept {}            // instead of OnEnd if backward throws
};

// A tensor that collects a gradient. Gradients accumulate over backwards until ZeroGrad.
class Leaf {
 public:
  explicit Leaf(const Tensor& value);

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  const Shape& shape() const { return shape_; }

  // Undefined until a backward has reached this leaf after construction or ZeroGrad.
  Tensor grad() const { return fresh_ ? Tensor() : grad_; }
  void ZeroGrad();
  // Gradients are written here from now on: same shape, floating, contiguous; any dtype (an f32
  // main gradient), any storage (a slice of a bucket). Empties the gradient.
  void SetDestination(const Tensor& destination);
  // Of gradients that the leaf allocates itself; at first the value's. Empties the gradient.
  void SetDType(DType dtype);
  // Replaces the gradient by a copy of this one, in the memory of the destination if there is one.
  void SetGrad(const Tensor& grad);
  // The same without a copy, and whatever the destination: a write to either is one to both. For
  // captured graphs, which write to the memory that they were captured with.
  void ShareGrad(const Tensor& grad);

  void AddObserver(BackwardObserver* observer) { observers_.push_back(observer); }
  void RemoveObserver(BackwardObserver* observer) { std::erase(observers_, observer); }
  const std::vector<BackwardObserver*>& observers() const { return observers_; }

 private:
  friend class GradSink;
  friend class LeafClaims;
  // What a node must write to need no conversion.
  DType grad_dtype() const { return fixed_ ? grad_.dtype() : dtype_; }

  std::string name_ = "unnamed";
  Shape shape_;
  DType dtype_;
  Tensor grad_;
  bool fixed_ = false;  // grad_ is a destination that stays
  bool fresh_ = true;   // the next write overwrites
  std::vector<BackwardObserver*> observers_;
  std::atomic<const void*> in_backward_of_ = nullptr;  // a thread
};

// Where a node puts the gradient of one of its inputs: once, of the input's shape, dtype and device
// (a leaf converts the dtype). Anything else throws ArgumentError naming the node and the input.
class GradSink {
 public:
  struct Target {
    Tensor tensor;            // contiguous
    bool accumulate = false;  // add to it (GEMM with beta = 1), else overwrite every element
  };

  GradSink() = default;
  GradSink(Leaf* leaf) : leaf_(leaf) {}
  GradSink(Tensor* buffer, Node* receiver = nullptr) : buffer_(buffer), receiver_(receiver) {}

  bool needed() const { return leaf_ != nullptr || buffer_ != nullptr; }
  // The node whose Backward gets this gradient, if it gets nothing else added to it and its graph
  // is not retained: a node that knows it may do its first step on the way (the derivative of an
  // activation in the epilogue of a product). Else null. f32 and f64 have the same bits either way;
  // in 16 bits the step on the way spares a rounding.
  Node* receiver() const { return receiver_; }
  // The destination, of the shape, dtype and device of `like`; the node writes it in full.
  Target Open(const Tensor& like);
  Target Open(const Shape& shape, DType dtype, Device device);
  // As Open, but a leaf's gradient comes with its own dtype (an f32 main gradient of a bf16
  // weight): for operations that can write another dtype than they compute in.
  Target OpenAnyDType(const Tensor& like);
  Target OpenAnyDType(const Shape& shape, DType dtype, Device device);
  // Hands over a finished gradient instead. It may alias other tensors; it is not written to.
  void Put(const Tensor& grad);

 private:
  friend class BackwardRun;
  // Throws unless a gradient like this may be given now.
  void CheckGiven(const Shape& shape, DType dtype, Device device);
  void Finish();              // moves a scratch target to where it belongs
  void Deliver(Tensor grad);  // moves it into the destination, or adds it
  Tensor* slot() { return leaf_ ? &leaf_->grad_ : buffer_; }
  bool empty() { return leaf_ ? leaf_->fresh_ : !buffer_->defined(); }

  Leaf* leaf_ = nullptr;
  Tensor* buffer_ = nullptr;
  Node* receiver_ = nullptr;
  const Node* node_ = nullptr;  // whose input it is; null for a root
  size_t input_ = 0;
  bool given_ = false;
  bool scratch_only_ = false;  // another sink of the same node writes to the same place
  Tensor scratch_;             // defined: to be added to the destination by Finish
};

// ---- What forward keeps. ----

// A tensor kept for backward. Its storage must not be written between forward and backward: Unpack
// throws Error naming `what` if it was. Hooks may replace what is kept (activation checkpointing,
// offload).
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(const Tensor& tensor, const char* what);
  Tensor Unpack() const;
  bool defined() const { return tensor_.defined() || unpack_ != nullptr; }
  void Reset() { *this = SavedTensor(); }

 private:
  friend class SavedTensorHooks;
  Tensor tensor_;
  uint64_t version_ = 0;
  const char* what_ = "";
  std::any packed_;
  std::shared_ptr<const std::function<Tensor(const std::any&)>> unpack_;
};

// Within its scope, tensors that this thread saves go through `pack`, and come back by `unpack`.
// The innermost scope wins.
class SavedTensorHooks {
 public:
  using Pack = std::function<std::any(const Tensor&)>;
  using Unpack = std::function<Tensor(const std::any&)>;
  SavedTensorHooks(Pack pack, Unpack unpack);
  ~SavedTensorHooks();
  SavedTensorHooks(const SavedTensorHooks&) = delete;
  SavedTensorHooks& operator=(const SavedTensorHooks&) = delete;

 private:
  friend class SavedTensor;
  Pack pack_;
  std::shared_ptr<const Unpack> unpack_;
  SavedTensorHooks* previous_;
};

// ---- The graph. ----

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
