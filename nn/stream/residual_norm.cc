#include "nn/stream/residual_norm.h"

#include "kernels/binary/binary.h"
#include "kernels/cast/cast.h"
#include "kernels/dropout/dropout.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"

namespace lockstep::nn {

Tensor WithOffset(const Tensor& weight, double offset) {
  if (offset == 0 || !weight.defined()) return weight;
  return ops::Cast(weight, AccumulationDType(weight.dtype())) + offset;
}

Tensor Norm(const NormOptions& options, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor w = WithOffset(weight, options.offset);
  return options.kind == NormKind::kRmsNorm ? ops::RmsNorm(x, w, options.eps)
                                            : ops::LayerNorm(x, w, bias, options.eps);
}

std::pair<Tensor, Tensor> ResidualNorm::Forward(const ResidualStream& stream) {
  return Apply(stream, weight_value(), bias_value());
}

std::pair<Tensor, Tensor> ResidualNorm::Apply(const ResidualStream& stream, const Tensor& weight,
                                              const Tensor& bias, SamplePart part) const {
  const ops::Branch& open = stream.open;
  if (!open.value.defined()) return {stream.x, Norm(options(), stream.x, weight, bias)};
  return ops::ResidualNorm(options().kind, stream.x, open, WithOffset(weight, options().offset),
                           bias, options().eps, part);
}

ops::Branch BranchNorm::Forward(ops::Branch branch) {
  return Apply(branch, weight_value(), bias_value());
}

Tensor BranchNorm::Apply(const ops::Branch& branch, const Tensor& weight, const Tensor& bias,
                         SamplePart part) const {
  Tensor x = branch.value;
  if (branch.bias.defined()) x = ops::Add(x, ops::Cast(branch.bias, x.dtype()));
  return ops::Dropout(Norm(options(), x, weight, bias), branch.dropout, branch.site, part);
}

}  // namespace lockstep::nn
