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
    void Write(const Tensor& grad) const;  // does so with this one, of the same shape
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

}  // namespace lockstep
