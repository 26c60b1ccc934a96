#include "nn/dropout.h"

#include "core/philox.h"
#include "core/step_state.h"
#include "kernels/binary/binary.h"
#include "kernels/dropout/dropout.h"

namespace lockstep::nn {

uint64_t RandomSite(const std::string& path) { return DistinctSite(HashName(path)); }

namespace {

double CheckProbability(double p) {
  LS_CHECK(p >= 0 && p < 1, "the probability of dropout must be in [0, 1), got ", p);
  return p;
}

}  // namespace

Dropout::Dropout(double p) : p_(CheckProbability(p)) {}

Tensor Dropout::Forward(const Tensor& x) {
  if (p_ == 0) return x;
  return CurrentStepState() ? ops::Dropout(x, p_, RandomSite(path())) : Evaluated(x);
}

Dropout2d::Dropout2d(double p) : p_(CheckProbability(p)) {}

Tensor Dropout2d::Forward(const Tensor& x) {
  LS_CHECK(x.ndim() >= 2, "Dropout2d: x must be [N, C, ...], got ", x.shape());
  if (p_ == 0) return x;
  if (CurrentStepState() == nullptr) return Evaluated(x);
  Shape channels = x.shape();
  for (int d = 2; d < x.ndim(); ++d) channels[d] = 1;
  const Tensor ones = Tensor::Full(channels, 1, x.dtype(), x.device());
  return x * ops::Dropout(ones, p_, RandomSite(path()));
}

BranchDropout::BranchDropout(double p) : p_(CheckProbability(p)) {}

ops::Branch BranchDropout::Forward(ops::Branch x) {
  if (p_ == 0) return x;
  if (CurrentStepState() == nullptr) {
    x.value = Evaluated(x.value);
    return x;
  }
  if (x.dropout > 0) x = ops::Complete(x);
  x.dropout = p_;
  x.site = RandomSite(path());
  return x;
}

}  // namespace lockstep::nn
