// The ranks that compute each layer of a model together, and the parts that decide its bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/parameter.h"
#include "core/tensor.h"
#include "dist/process_group.h"
#include "dist/tensor/partial_sums.h"

namespace lockstep::dist {

// Tensor parallelism with sequence parallelism: Shoeybi et al., "Megatron-LM" (2019); Korthikanti
// et al., "Reducing activation recomputation in large transformer models" (2022). Each of size()
// ranks has an equal part of every layer (of the columns or rows of its matrices, of heads, of the
// vocabulary), and between the layers an equal part of the sequence.
//
// A sum that is split across ranks (over the inputs of a row-parallel layer, over the outputs of a
// column-parallel one, over the tokens for a norm's weight, over the vocabulary in the loss) is
// always the sum of parts() partial sums in f32, f64 for f64, added in adjacent pairs:
// ((0 + 1) + (2 + 3)) + ..., and rounded once, unless its PartialSums are the library's. A rank
// computes parts() / size() neighbouring ones, which are a subtree. So the bits depend on parts(),
// and not on size(): a single rank computes all of them.
//
// Under NoGrad, as in evaluation and generation, every rank has the whole sequence, so that it may
// have any length.
class TensorRanks {
 public:
  // A null group means a single rank; otherwise the group outlives this. `sums`: how those of the
  // group's ranks are added, null: MakeOrderedSums. Throws ArgumentError unless parts / size is a
  // power of two, or size is 1.
  TensorRanks(ProcessGroup* group, int64_t parts,
              std::unique_ptr<const PartialSums> sums = nullptr);
  virtual ~TensorRanks() = default;
  TensorRanks(const TensorRanks&) = delete;
  TensorRanks& operator=(const TensorRanks&) = delete;

  int64_t size() const { return size_; }
  int64_t rank() const { return rank_; }
  int64_t parts() const { return parts_; }
  int64_t own() const { return parts_ / size_; }   // this rank's parts
  int64_t first() const { return rank_ * own(); }  // the first of them
  // How many of `size` rows of a vocabulary, which need not divide, each of parts() has; the last
  // has what is left.
  int64_t VocabularyPart(int64_t size) const { return (size + parts_ - 1) / parts_; }
  // How many of them this rank has.
  int64_t OwnVocabulary(int64_t size) const {
    const int64_t most = own() * VocabularyPart(size);
    return std::min(most, size - rank_ * most);
  }
  ProcessGroup* group() const { return group_; }

  // The own parts lie side by side along part_dim() of a rank's part of the sequence, and own part
  // j is part PartAt(j) of the sequence's sequence_parts() equal parts.
  virtual int part_dim() const { return 1; }
  virtual int64_t PartAt(int64_t j) const { return first() + j; }
  virtual int64_t sequence_parts() const { return parts_; }
  // The ranks that compute each of these parts together: of its tokens a rank has those of its
  // rank among them. Null: this rank computes its parts on its own.
  virtual std::shared_ptr<const TensorRanks> within() const { return nullptr; }
  // The shape of this rank's part of a residual stream [B, T, C], in training. Throws ArgumentError
  // unless the parts, and those within them, divide T.
  Shape PartShape(Shape stream) const;
  // The stride between ranks that hold the same part of the parameter. 1: all hold the same;
  // size(): each holds another part.
  virtual int64_t CopyStride(const Parameter& parameter) const;

  // The sum of the own parts, where part(j), for j in [0, own()), makes the partial sums: fresh
  // tensors of one shape and dtype.
  Tensor SumOwn(const std::function<Tensor(int64_t j)>& part) const;

  // The dtype in which this rank's partial sums of a result in `dtype` are made.
  DType PartialDType(DType dtype) const;

  // All of these are collective.
  // [B, T / size, ...], each rank's part of the sequence, to the whole [B, T, ...].
  Tensor GatherSequence(const Tensor& part) const;
  // The sum over ranks of each one's `sum` [B, T, ...], of which a rank gets its part of the
  // sequence, [B, T / size, ...], rounded to dtype.
  Tensor ScatterSum(const Tensor& sum, DType dtype) const;
  // The same, on every rank all of it; of any shape.
  Tensor Sum(const Tensor& sum, DType dtype) const;
  // Each rank's tensor, in rank order: [size, ...].
  Tensor Gather(const Tensor& mine, const char* what) const;
  // Of each rank the rows that it has of a vocabulary, [rows, ...]: all of them, [size, ...].
  Tensor GatherVocabulary(const Tensor& rows, int64_t size, const char* what) const;

 private:
  ProcessGroup* const group_;
  const int64_t size_, rank_, parts_;
  const std::unique_ptr<const PartialSums> sums_;
};

using TensorRanksPtr = std::shared_ptr<const TensorRanks>;

// Part `part` of `parts` equal ones of a dimension. With segments, which add up to the dimension,
// that part of each, side by side: queries, keys and values of a fused matrix. A copy unless the
// part is contiguous in x. No gradient.
Tensor PartAlong(const Tensor& x, int dim, std::span<const int64_t> segments, int64_t parts,
                 int64_t part);

// Part j of the rows of a vocabulary, of `most` each but the last. No gradient.
Tensor VocabularyRowsOf(const Tensor& rows, int64_t most, int64_t j);

}  // namespace lockstep::dist
