#include "kernels/dropout/dropout.h"

#include "core/autograd/node.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

int64_t Samples(const Tensor& x) { return x.ndim() > 0 ? x.dim(0) : 1; }

}  // namespace

Tensor Dropout(const Tensor& x, double p, uint64_t site, SamplePart part) {
  CheckFloating("dropout", x);
  LS_CHECK(p >= 0 && p < 1, "dropout: the probability must be in [0, 1), got ", p);
  const StepState* state = p == 0 ? nullptr : RandomState();
  if (state == nullptr) return p == 0 ? x : Evaluated(x);
  LS_CHECK(state->device() == x.device(), "dropout: x is on ", x.device(),
           ", the StepState of the TrainingScope on ", state->device());
  const Tensor input = x.Detach().Contiguous();
  const Tensor key = Tensor::Empty({kDropoutKeySize}, DType::kI64, x.device());
  Tensor y = Tensor::EmptyLike(input);
  dropout_forward(CurrentStream(x.device()), input, Samples(x), part, p, site,
                  state->device_values(), y, key);
  RecordOp("dropout", {&x}, {&y}, {{key, "the key of dropout's mask"}},
           [p, part](const SavedTensors& saved, Gradients& grads) {
             const Tensor& dy = grads[0];
             const Tensor key = saved[0];
             const auto [dx, accumulate] = grads.Open(0);
             dropout_backward(CurrentStream(dy.device()), dy, Samples(dy), part, p, key, dx,
                              accumulate);
           });
  return y;
}

}  // namespace lockstep::ops
