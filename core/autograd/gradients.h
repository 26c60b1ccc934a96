// What a node's backward is given, and where it puts the gradients of its inputs.
#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

class Node;

struct TensorSpec {
  Shape shape = {};
  DType dtype = DType::kF32;
  Device device = {};
};

// Where a gradient is to be written.
struct GradTarget {
  Tensor tensor = {};       // contiguous; undefined where no gradient is needed
  bool accumulate = false;  // add to it (GEMM with beta = 1), else overwrite every element
  void Write(const Tensor& grad) const;  // adds or copies a gradient of the same shape
};

// One run of a node's Backward: the gradients of its outputs, which it may only read (unless
// MayOverwrite, core/autograd/engine.h), and the places of those of its inputs. A needed gradient
// is given once, by Open or by Put. What is put has the input's shape, dtype and device. A mistake
// throws ArgumentError naming the node and the input.
class Gradients {
 public:
  // That of output k, contiguous: zeros if nothing used the output.
  const Tensor& operator[](size_t k) const { return of_outputs_[k]; }
  std::span<const Tensor> of_outputs() const { return of_outputs_; }
  // Whether the gradient of input i is needed, now: SplitsByInput and BackwardOptions::defer ask
  // for some at a time.
  bool needs(size_t i) const;
  size_t inputs() const;
  const TensorSpec& spec(size_t i) const;  // of input i, if it is defined

  // The place of input i's gradient, all of which the node writes. Without a tensor if no gradient
  // is needed.
  GradTarget Open(size_t i);
  // As Open, but a leaf's gradient keeps its own dtype (an f32 main gradient of a bf16 weight): for
  // operations that can write another dtype than the one they compute in.
  GradTarget OpenAnyDType(size_t i);
  // Hands over a finished gradient, which may be a view of other tensors. A leaf keeps what is
  // moved here and held by nobody else; otherwise it copies.
  void Put(size_t i, Tensor grad);
  // Puts the same for each input that needs one.
  void PutAll(const Tensor& grad) {
    for (size_t i = 0; i < inputs(); ++i) {
      if (needs(i)) Put(i, grad);
    }
  }

  // The node whose Backward receives the gradient of input i, if nothing else is added to the
  // gradient and the graph is not retained; otherwise null. The giver may fuse the receiver's first
  // step (an activation's derivative, into a product's epilogue). In f32 and f64 the bits are the
  // same either way; in 16 bits fusing saves a rounding.
  Node* receiver(size_t i) const;

 private:
  friend class BackwardRun;
  struct Input;  // core/autograd/backward_parts.h

  Gradients(const Node& node, std::vector<Tensor> of_outputs);
  ~Gradients();
  // Throws unless such a gradient may be given now.
  void CheckGiven(size_t i, const Shape& shape, DType dtype, Device device);
  GradTarget Open(size_t i, DType dtype);

  const Node& node_;
  std::vector<Tensor> of_outputs_;
  std::vector<Input> inputs_;
};

}  // namespace lockstep
