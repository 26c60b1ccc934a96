#include "nn/dropout.h"

#include "core/philox.h"
#include "core/step_state.h"
#include "kernels/dropout/dropout.h"

namespace lockstep::nn {

uint64_t RandomSite(const std::string& path) { return DistinctSite(HashName(path)); }

Dropout::Dropout(double p) : p_(p) {
  LS_CHECK(p >= 0 && p < 1, "the probability of dropout must be in [0, 1), got ", p);
}

Tensor Dropout::Forward(const Tensor& x) {
  if (p_ == 0 || CurrentStepState() == nullptr) return x;
  return ops::Dropout(x, p_, RandomSite(path()));
}

ops::Branch Dropout::ForwardBranch(const ops::Branch& x) {
  if (p_ == 0 || CurrentStepState() == nullptr) return x;
  // One dropout is left open, the first of two is not.
  ops::Branch y = x.dropout == 0 ? x : ops::Complete(x);
  y.dropout = p_;
  y.site = RandomSite(path());
  return y;
}

}  // namespace lockstep::nn
