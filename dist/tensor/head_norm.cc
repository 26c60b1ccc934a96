#include "dist/tensor/head_norm.h"

#include "dist/tensor/sequence.h"
#include "kernels/binary/binary.h"
#include "kernels/cast/cast.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"
#include "kernels/unary/unary.h"

namespace lockstep::dist {
HeadNorm::HeadNorm(const nn::RmsNorm& replaced, TensorRanksPtr ranks, int dim)
    : RmsNorm(std::cref(replaced)), axes_{{std::move(ranks), dim}} {
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
  return Joined(parts, dim);
}

ProjectionNorm::ProjectionNorm(const nn::RmsNorm& replaced, TensorRanksPtr ranks)
    : NormParameters(&replaced), ranks_(std::move(ranks)) {}

Tensor ProjectionNorm::Forward(const Tensor& x) {
  const DType wide = AccumulationDType(x.dtype());
  const std::vector<Tensor> xs = x.Chunk(ranks_->own(), 2);
  std::vector<Tensor> weights(xs.size()), parts, squares;
  if (weight()) weights = weight()->value().Chunk(ranks_->own(), 0);
  for (const Tensor& part : xs) {
    parts.push_back(ops::Cast(part, wide));
    squares.push_back(ops::Sum(ops::Square(parts.back()), {2}, /*keepdim=*/true));
  }
  const std::vector<Tensor> sums = FanOut(ranks_, {SumParts(*ranks_, squares)})[0];
  const auto width = static_cast<double>(x.dim(2) * ranks_->size());
  for (size_t j = 0; j < parts.size(); ++j) {
    const Tensor scale = ops::Rsqrt(sums[j] / width + options().eps);
    parts[j] = parts[j] * scale;
    if (weight()) {
      parts[j] = parts[j] * ops::Cast(nn::WithOffset(weights[j], options().offset), wide);
    }
    parts[j] = ops::Cast(parts[j], x.dtype());
  }
  return Joined(parts, 2);
}

}  // namespace lockstep::dist
