// What works on a part of the sequence: norms and dropouts of the residual stream.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "dist/tensor/tensor_ranks.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/stream/residual_norm.h"
#include "nn/stream/stream_mix.h"

namespace lockstep::dist {

// own() tensors with the memory of each input: result[i][j] is copy j of inputs[i], undefined where
// that is. The gradient of an input is the sum over all copies on all ranks, added in adjacent
// pairs, of gradients that are f32 at least: one collective for all inputs together.
std::vector<std::vector<Tensor>> FanOut(const TensorRanksPtr& ranks,
                                        const std::vector<Tensor>& inputs);

// The parts side by side along a dimension; the only one as it is.
Tensor Joined(const std::vector<Tensor>& parts, int dim);
// The sum of the own() parts of all ranks, of any shape, added in adjacent pairs; the same on each
// rank. Its gradient is that of each part.
Tensor SumParts(const TensorRanks& ranks, const std::vector<Tensor>& parts);

// What adds a stream's open branch to it, and perhaps norms the sum, part by part: f(part, copies,
// where) for each of this rank's own() virtual parts of the stream [B, T / size, C], with copies of
// the branch's bias (in part.open) and of `parameters`, some of which may be undefined. The results
// are joined again; of the pair the first may be undefined. Where ranks compute the parts together
// (TensorRanks::within), f is for each virtual part of these. Throws ArgumentError if own() does
// not divide the sequence.
using StreamPart = std::function<std::pair<Tensor, Tensor>(
    const nn::ResidualStream& part, const std::vector<Tensor>& copies, SamplePart where)>;
std::pair<Tensor, Tensor> MapParts(const TensorRanksPtr& ranks, const nn::ResidualStream& stream,
                                   std::vector<Tensor> parameters, const StreamPart& f);

// In the place of an nn::ResidualNorm: the streams are this rank's part of the sequence, [B, T /
// size, C], or where its parts lie otherwise (TensorRanks::part_dim), those. The gradients of
// weight, bias and the branch's bias are sums over tokens: one of each for each of parts() virtual
// parts of the sequence, whose number must divide T.
class SequenceNorm : public nn::ResidualNorm {
 public:
  SequenceNorm(const nn::ResidualNorm& replaced, TensorRanksPtr ranks);

 protected:
  std::pair<Tensor, Tensor> Forward(const nn::ResidualStream& stream) override;

 private:
  const TensorRanksPtr ranks_;
};

// In the place of an nn::BranchNorm, in the same way: the branch is of this rank's part of the
// sequence.
class SequenceBranchNorm : public nn::BranchNorm {
 public:
  SequenceBranchNorm(const nn::BranchNorm& replaced, TensorRanksPtr ranks);

 protected:
  ops::Branch Forward(ops::Branch branch) override;

 private:
  const TensorRanksPtr ranks_;
};

// In the place of an nn::StreamMix, in the same way: its numbers' gradients are sums over tokens.
class SequenceMix : public nn::StreamMix {
 public:
  SequenceMix(const nn::StreamMix& replaced, TensorRanksPtr ranks);

 protected:
  std::pair<Tensor, Tensor> Forward(const nn::ResidualStream& stream) override;

 private:
  const TensorRanksPtr ranks_;
};

// In the place of an nn::Linear without bias and activation whose weight is whole on every rank:
// the smaller matrix of a low-rank adapter. x is this rank's part of the sequence, [B, T / size,
// K], or where its parts lie otherwise, those, and y is the same part. There is a product for each
// virtual part, and the gradient of the weight is the sum of theirs.
class SequenceLinear : public Layer {
 public:
  SequenceLinear(std::shared_ptr<Parameter> weight, TensorRanksPtr ranks);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  const TensorRanksPtr ranks_;
  const std::shared_ptr<Parameter> weight_;
};

// In the place of an nn::Dropout, for this rank's part of the sequence [B, T / size, C], or where
// its parts lie otherwise, those: with the mask that the whole sequence has there. (Those of
// branches are applied by SequenceNorm.)
class SequenceDropout : public Layer {
 public:
  SequenceDropout(double p, TensorRanksPtr ranks);

  double p() const { return p_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  const TensorRanksPtr ranks_;
  const double p_;
};

// In the place of an nn::Dropout of what a RowLinear takes, of which a rank has an equal part of
// the columns: x [B, T, K / size] -> the same. Masks are drawn for each of the parts() virtual
// parts of the columns, one after the other, so that they do not depend on the ranks. `context`,
// which may be null: the ranks of which x has chunks, [own() B, T / sequence_parts(), K / size].
class RowDropout : public Layer {
 public:
  RowDropout(double p, TensorRanksPtr ranks, TensorRanksPtr context = nullptr);

  double p() const { return p_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  const TensorRanksPtr ranks_, context_;
  const double p_;
};

}  // namespace lockstep::dist
