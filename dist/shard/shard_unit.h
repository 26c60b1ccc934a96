// What ranks gather and scatter at once: the parameters of a block.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/offload/host_copies.h"
#include "core/parameter.h"
#include "dist/process_group.h"
#include "dist/shard/flat_exchange.h"

namespace lockstep::dist {

// The value of a parameter whose leaves alone are used; it takes no memory in a plan, either.
Tensor WithoutMemory(const Shape& shape, DType dtype);

// Cuts its parameters, of which each rank keeps a part (Parameter::value), and has memory for the
// whole weights and gradients only while they are used: tensors keep pointing at the storages,
// whose memory is released and taken again. For use by one thread, except where a function says
// otherwise.
class ShardUnit {
 public:
  // All of the parameters are trainable, or none; they are whole, or cut by Parallelize, and in
  // memory or not; or another unit of this rank has cut them in the same way. `group`: of the
  // ranks; null: a single one. `multiple` divides the size of a shard. `exchange` is an axis of
  // `parts`. The observer, which may be null, is that of the whole weights' leaves.
  ShardUnit(std::vector<std::shared_ptr<Parameter>> parameters, ProcessGroup* group,
            int64_t multiple, const std::shared_ptr<MeshParts>& parts, FlatExchange& exchange,
            BackwardObserver* observer);
  // For the gradients of one use of a tied weight, `gradient_holder`, which has the shape of the
  // whole and is cut as the weight is. The weight is gathered, and its part kept, by the unit whose
  // only parameter it is, with the same ranks and multiple.
  ShardUnit(const std::shared_ptr<Parameter>& weight,
            const std::shared_ptr<Parameter>& gradient_holder, int64_t ranks, int64_t rank,
            int64_t multiple, BackwardObserver* observer);
  ~ShardUnit();
  ShardUnit(const ShardUnit&) = delete;
  ShardUnit& operator=(const ShardUnit&) = delete;

  bool trainable() const { return trainable_; }
  // "the weights of 'h.0.ln_1.weight' and 11 more"
  std::string Describe(const char* what) const;

  // ---- Weights. A null group means a single rank. ----
  // Begins to gather the whole weights, unless those of the current parts are there already or on
  // their way. The call that it makes; null: none.
  WorkPtr StartGather(ProcessGroup* group);
  // Orders this thread's work after that.
  void Await();
  int64_t weight_bytes() const { return weights_.bytes(); }
  // Shows them to forward, until Hide by the same module (its number): one that runs within it
  // may have parameters in common with it.
  void Show(size_t by);
  void Hide(size_t by);
  void Release();
  // Copies this rank's part of whole weights that were written back to the parameters.
  void KeepWritten();

  // ---- Gradients, of trainable units that have been gathered. ----
  std::span<const std::shared_ptr<Leaf>> leaves() const { return leaves_; }  // of the whole weights
  // From now on whole gradients are written to this buffer, starting afresh.
  void WriteTo(int64_t buffer);
  // Takes memory for the buffer, unless it has some.
  void TakeGradients();
  // A parameter that got none counts as zero.
  void FillAbsent(const Leaf& leaf) const;
  // A buffer of whole gradients, [ranks * shard] of SumDType; its memory may be released.
  const Tensor& whole(int64_t buffer) { return Buffer(wholes_, buffer, layout_->numel(), true); }
  // A buffer of summed gradients of this rank's parts, [shard].
  const Tensor& shard(int64_t buffer) { return Buffer(shards_, buffer, layout_->shard, false); }
  // One that has a gradient already; null: none has.
  const Parameter* WithGradient() const;
  // Before buffers of whole gradients are summed, once or more in a step: notes which of them are
  // not finite. On the thread that sums.
  void NoteSquares(std::span<const int64_t> buffers, bool afresh);
  // Whether that was so of this parameter, in the last step (`ago` = 0) or the one before (1).
  bool WasNonFinite(const Parameter& parameter, int64_t ago) const;
  // The parameters' gradients are the parts in this buffer, until ZeroGrad.
  void ShareGradients(int64_t buffer);

 private:
  void Build();
  void BuildApart();
  std::shared_ptr<Leaf> LeafOf(Tensor& whole, const std::string& name) const;
  bool IsCurrent() const;
  int64_t numel(size_t p) const { return shapes_[p].numel(); }
  ShardRange RangeOf(size_t p) const { return layout_->RangeOf(p, numel(p), rank_); }
  // This rank's part of parameter p within the whole weights.
  Tensor Mine(size_t p) const;
  const Tensor& Buffer(std::vector<Tensor>& buffers, int64_t i, int64_t numel, bool released);

  const std::vector<std::shared_ptr<Parameter>> parameters_;
  const std::vector<Shape> shapes_;  // of what is "whole" here: all that the cuts give
  const int64_t rank_;
  const bool trainable_;
  const std::shared_ptr<Parameter> gradient_holder_;  // null: not of one use
  BackwardObserver* const observer_;
  std::shared_ptr<const FlatLayout> layout_;
  // Parameter p, or the one use of it.
  Parameter& Used(size_t p) const { return gradient_holder_ ? *gradient_holder_ : *parameters_[p]; }

  // The whole weights; undefined before the first gather. The slices are the parameters; of one use
  // without their memory.
  Tensor weights_;
  std::vector<Tensor> slices_;
  std::vector<std::shared_ptr<Leaf>> leaves_;
  // The parts as they were when they were gathered last.
  struct Seen {
    Storage storage;
    uint64_t version = 0;
  };
  std::vector<Seen> gathered_, written_;  // parts; whole weights
  HostCopies::Done arriving_;             // parts that are kept on the host
  WorkPtr gathering_;
  std::optional<size_t> shown_by_;
  std::vector<Tensor> wholes_, shards_;  // gradients, by buffer
  std::vector<Tensor> destinations_;     // by parameter
  // f64: sums of squares, by buffer, parameter and chunk, of the last step and the one before.
  Tensor squares_, earlier_squares_;
  int64_t buffer_ = 0;  // that is written to
  std::optional<HostCopies> copies_;
};

}  // namespace lockstep::dist
