#include "kernels/global_norm/global_norm.h"

namespace lockstep::ops {

void GradNorm(std::span<const Tensor> grads, double max_norm, const StepState& state) {
  LS_CHECK(max_norm >= 0, "grad_norm: max_norm must be at least 0 (0 = measure only), got ",
           max_norm);
  int64_t chunks = 0;
  for (size_t i = 0; i < grads.size(); ++i) {
    const Tensor& g = grads[i];
    LS_CHECK(
        g.defined() && IsFloating(g.dtype()) && g.is_contiguous() && g.device() == state.device(),
        "grad_norm: gradient ", i, " must be contiguous, floating and on ", state.device(),
        " as the StepState is, got ", g.Describe());
    chunks += GradNormChunks(g);
  }
  const Tensor sums = Tensor::Empty({chunks}, DType::kF64, state.device());
  const Stream stream = CurrentStream(state.device());
  grad_norm_square_sums(stream, grads, sums);
  grad_norm_finish(stream, sums, max_norm, state.device_values());
}

}  // namespace lockstep::ops
