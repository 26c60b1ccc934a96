// Parts of the engine: in which order a backward runs, which ranges it is in, what it claims, and
// where it collects gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "core/autograd/node.h"

namespace lockstep {

struct BackwardOrder {
  std::vector<std::shared_ptr<Node>> nodes;   // all that the roots depend on, the last one first
  std::vector<std::shared_ptr<Leaf>> leaves;  // in the order of their last use
  std::vector<int64_t> last_use;  // of each leaf: the position of the node that uses it last, or -1
                                  // for a leaf that is a root and no node's input
};
BackwardOrder OrderBackward(std::span<const Tensor> roots);

// Which ranges of nodes (BackwardRange) a backward has begun and not ended.
class BackwardRanges {
 public:
  // Begins the ranges of the next node that have not begun.
  void Begin(const std::vector<std::shared_ptr<const BackwardRange>>& of_node);
  // Ends those that no node with a sequence of at most `sequence` belongs to.
  void End(uint64_t sequence);

 private:
  std::vector<std::shared_ptr<const BackwardRange>> active_;  // the next one to end is the last
  std::unordered_set<const BackwardRange*> begun_;
};

// Claims the leaves for this thread's backward during its lifetime: two concurrent backwards would
// lose additions, so a leaf of another thread's is an ArgumentError. A backward within another, of
// the same thread, shares its claims.
class LeafClaims {
 public:
  explicit LeafClaims(const std::vector<std::shared_ptr<Leaf>>& leaves);
  ~LeafClaims();
  LeafClaims(const LeafClaims&) = delete;
  LeafClaims& operator=(const LeafClaims&) = delete;

 private:
  LeafClaims() = default;

  std::vector<std::shared_ptr<Leaf>> claimed_;
};

// Collects one gradient for the engine: that of a leaf, or of a node's output.
class GradSink {
 public:
  GradSink() = default;
  GradSink(Leaf* leaf) : leaf_(leaf) {}
  GradSink(Tensor* buffer) : buffer_(buffer) {}

  bool defined() const { return leaf_ != nullptr || buffer_ != nullptr; }
  Leaf* leaf() const { return leaf_; }
  // Until Finish, the target may be a scratch.
  GradTarget Open(const TensorSpec& spec);
  // Moves the gradient into an empty destination, if nobody else holds it, or adds it.
  void Put(Tensor grad);
  void Finish();
  // What has been collected so far.
  const Tensor& result() const { return *slot(); }
  // Another sink that is open at the same time has the same destination: write to a scratch.
  bool SameAs(const GradSink& other) const { return slot() == other.slot(); }
  void ScratchOnly() { scratch_only_ = true; }

 private:
  void Deliver(Tensor grad);
  Tensor* slot() const;
  bool empty() const;

  Leaf* leaf_ = nullptr;
  Tensor* buffer_ = nullptr;
  bool scratch_only_ = false, opened_ = false;
  Tensor scratch_;  // if defined, Finish adds it to the destination
};

// What a run of a node's Backward knows of an input.
struct Gradients::Input {
  GradSink sink;
  bool needed = false, given = false;
  Node* receiver = nullptr;
};

}  // namespace lockstep
