#include "dist/tensor/head_norm.h"

#include "dist/tensor/sequence.h"
#include "kernels/concat/concat.h"

namespace lockstep::dist {

HeadNorm::HeadNorm(const nn::RmsNorm& replaced, TensorRanksPtr ranks, int dim)
    : RmsNorm(&replaced), axes_{{std::move(ranks), dim}} {
  if (const auto* norm = dynamic_cast<const HeadNorm*>(&replaced)) {
    axes_.insert(axes_.end(), norm->axes_.begin(), norm->axes_.end());
  }
}

Tensor HeadNorm::Forward(const Tensor& x) {
  return GradEnabled() ? Norm(x, weight()->value(), 0) : RmsNorm::Forward(x);
}

Tensor HeadNorm::Norm(const Tensor& x, const Tensor& weight, size_t axis) const {
  if (axis == axes_.size()) return nn::Norm(options(), x, weight, {});
  const auto& [ranks, dim] = axes_[axis];
  const std::vector<Tensor> copies = FanOut(ranks, {weight})[0];
  std::vector<Tensor> parts = x.Chunk(ranks->own(), dim);
  for (size_t j = 0; j < parts.size(); ++j) parts[j] = Norm(parts[j], copies[j], axis + 1);
  return parts.size() == 1 ? parts[0] : ops::Concat(parts, dim);
}

}  // namespace lockstep::dist
