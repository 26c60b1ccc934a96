// Where a node puts the gradients of its inputs.
#pragma once

#include "core/autograd/leaf.h"

namespace lockstep {

class Node;

// Where a node puts the gradient of one of its inputs: once, of the input's shape, dtype and device
// (a leaf converts the dtype). Anything else throws ArgumentError naming the node and the input.
class GradSink {
 public:
  struct Target {
    Tensor tensor;            // contiguous
    bool accumulate = false;  // add to it (GEMM with beta = 1), else overwrite every element
    void Write(const Tensor& grad) const;  // adds or copies a gradient of the same shape
  };

  GradSink() = default;
  GradSink(Leaf* leaf) : leaf_(leaf) {}
  GradSink(Tensor* buffer, Node* receiver = nullptr) : buffer_(buffer), receiver_(receiver) {}

  bool needed() const { return leaf_ != nullptr || buffer_ != nullptr; }
  // The node whose Backward receives this gradient, if nothing else is added to the gradient and
  // the graph is not retained; otherwise null. The giver may fuse the receiver's first step (an
  // activation's derivative, into a product's epilogue). In f32 and f64 the bits are the same
  // either way; in 16 bits fusing saves a rounding.
  Node* receiver() const { return receiver_; }
  // The destination, with the shape, dtype and device of `like`; the node writes all of it.
  Target Open(const Tensor& like);
  Target Open(const Shape& shape, DType dtype, Device device);
  // As Open, but a leaf's gradient keeps its own dtype (an f32 main gradient of a bf16 weight): for
  // operations that can write another dtype than the one they compute in.
  Target OpenAnyDType(const Tensor& like);
  Target OpenAnyDType(const Shape& shape, DType dtype, Device device);
  // Hands over a finished gradient instead. It may alias other tensors; it is never written to.
  void Put(const Tensor& grad);

 private:
  friend class BackwardRun;
  // Throws unless a gradient like this may be given now.
  void CheckGiven(const Shape& shape, DType dtype, Device device);
  void Finish();              // moves a scratch target to its destination
  void Deliver(Tensor grad);  // moves it into the destination, or adds it
  Tensor* slot() { return leaf_ ? &leaf_->grad_ : buffer_; }
  bool empty() { return leaf_ ? leaf_->fresh_ : !buffer_->defined(); }

  Leaf* leaf_ = nullptr;
  Tensor* buffer_ = nullptr;
  Node* receiver_ = nullptr;
  const Node* node_ = nullptr;  // whose input this is; null for a root
  size_t input_ = 0;
  bool given_ = false;
  bool scratch_only_ = false;  // another sink of the node has the same destination
  Tensor scratch_;             // if defined, Finish adds it to the destination
};

}  // namespace lockstep
