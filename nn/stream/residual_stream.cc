#include "nn/stream/residual_stream.h"

#include "kernels/residual/residual.h"

namespace lockstep::nn {

ResidualStream StartStream(const Tensor& x) { return {x, {}, x.View(x.shape())}; }

Tensor Complete(const ResidualStream& stream) {
  const ops::Branch& open = stream.open;
  return open.value.defined() ? ops::Residual(stream.x, ops::Complete(open)) : stream.x;
}

Tensor SumOf(const ResidualStream& stream, SamplePart part) {
  const ops::Branch& open = stream.open;
  if (!open.value.defined()) return stream.x;
  if (!open.bias.defined() && open.dropout == 0) return ops::Residual(stream.x, open.value);
  return ops::ResidualNorm(NormKind::kRmsNorm, stream.x, open, {}, {}, 1e-5, part).first;
}

}  // namespace lockstep::nn
