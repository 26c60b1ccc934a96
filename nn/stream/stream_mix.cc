#include "nn/stream/stream_mix.h"

#include "kernels/mix/mix.h"

namespace lockstep::nn {

StreamMix::StreamMix()
    : a_(AddParameter("a", {1}, Constant(1), /*decay=*/false)),
      b_(AddParameter("b", {1}, Constant(0), /*decay=*/false)) {}

StreamMix::StreamMix(const StreamMix* other) : a_(other->a_), b_(other->b_) {
  ShareParameter("a", a_);
  ShareParameter("b", b_);
}

std::pair<Tensor, Tensor> StreamMix::Forward(const ResidualStream& stream) {
  return Apply(stream, a_->value(), b_->value());
}

std::pair<Tensor, Tensor> StreamMix::Apply(const ResidualStream& stream, const Tensor& a,
                                           const Tensor& b, SamplePart part) {
  LS_CHECK(stream.x0.defined(),
           "a block that mixes in the start of its stream got a stream without one: begin with "
           "StartStream(x)");
  const Tensor x = SumOf(stream, part);
  return {x, ops::Mix(x, a, stream.x0, b)};
}

}  // namespace lockstep::nn
