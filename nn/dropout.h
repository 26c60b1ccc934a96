// Dropout, Srivastava et al. (2014).
#pragma once

#include "nn/branch.h"

namespace lockstep::nn {

// In a TrainingScope zeroes each element with probability p and multiplies the others by 1/(1 - p);
// outside of one, and for p = 0, returns x itself. The mask is a function of (seed, step, this
// module's path, how often it ran before in the micro-batch, the element's place in the global
// batch), not of rank, micro-batch or device. So the model must have names (Module::Materialize).
// Throws ArgumentError unless 0 <= p < 1.
class Dropout : public BranchLayer {
 public:
  explicit Dropout(double p);

  double p() const { return p_; }

 protected:
  Tensor Forward(const Tensor& x) final;
  ops::Branch ForwardBranch(const ops::Branch& x) final;

 private:
  double p_;
};

// The number by which random operations tell their places apart, of a path as Module::path() has
// it: another each time that a micro-batch's forward comes by (DistinctSite).
uint64_t RandomSite(const std::string& path);

}  // namespace lockstep::nn
