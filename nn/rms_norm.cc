#include "nn/rms_norm.h"

#include "kernels/rms_norm/rms_norm.h"
#include "nn/init.h"

namespace lockstep::nn {

RmsNorm::RmsNorm(int64_t dim, double eps) : eps_(eps) {
  LS_CHECK(dim > 0, "RmsNorm needs a positive size, got ", dim);
  LS_CHECK(eps > 0, "RmsNorm needs eps > 0, got ", eps);
  weight_ = AddParameter("weight", {dim}, Constant(1), /*decay=*/false);
}

RmsNorm::RmsNorm(std::shared_ptr<Parameter> weight, double eps)
    : eps_(eps), weight_(std::move(weight)) {
  ShareParameter("weight", weight_);
}

Tensor RmsNorm::Forward(const Tensor& x) { return ops::RmsNorm(x, weight_->value(), eps_); }

}  // namespace lockstep::nn
