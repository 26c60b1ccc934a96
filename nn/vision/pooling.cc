#include "nn/vision/pooling.h"

namespace lockstep::nn {

Tensor Flatten::Forward(const Tensor& x) {
  LS_CHECK(x.defined() && x.ndim() >= 1, "Flatten needs a tensor [N, ...], got ", x.Describe());
  int64_t rest = 1;  // not -1, which is ambiguous where N is 0
  for (int i = 1; i < x.ndim(); ++i) rest *= x.dim(i);
  return x.Reshape({x.dim(0), rest});
}

}  // namespace lockstep::nn
