// Dropout, Srivastava et al. (2014).
#pragma once

#include "nn/stream/residual_stream.h"

namespace lockstep::nn {

// In a TrainingScope zeroes each element with probability p and multiplies the others by 1/(1 - p);
// outside of one, and for p = 0, returns x itself (a Backward outside of one then throws, unless p
// is 0 or BackwardOptions::evaluation is set). The mask is a function of (seed, step, this
// module's path, how often it ran before in the micro-batch, the element's place in the global
// batch), not of rank, micro-batch or device. So the model must have names (Module::Materialize).
// Throws ArgumentError unless 0 <= p < 1.
class Dropout : public Layer {
 public:
  explicit Dropout(double p);

  double p() const { return p_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  double p_;
};

// The same for whole channels: either all elements of a channel of a sample in x [N, C, ...] become
// zero or none, as in torch.nn.Dropout2d. Tompson et al., "Efficient object localization using
// convolutional networks" (CVPR 2015). Throws ArgumentError for an x of fewer than 2 dimensions.
class Dropout2d : public Layer {
 public:
  explicit Dropout2d(double p);

  double p() const { return p_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  double p_;
};

// The dropout of a branch, with the mask that Dropout has at this path. It is left to the module
// that adds the branch to the stream. If the branch has a dropout already, that one is completed.
class BranchDropout : public BranchLayer {
 public:
  explicit BranchDropout(double p);

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  double p_;
};

// The number by which random operations tell their places apart, made from a path as Module::path()
// returns it. It is a different one each time that a micro-batch's forward passes here
// (DistinctSite).
uint64_t RandomSite(const std::string& path);

}  // namespace lockstep::nn
