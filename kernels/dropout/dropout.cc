#include "kernels/dropout/dropout.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

int64_t Samples(const Tensor& x) { return x.ndim() > 0 ? x.dim(0) : 1; }

class DropoutNode : public Node {
 public:
  DropoutNode(const Tensor& key, double p, SamplePart part)
      : Node("dropout"), key_(key, "the key of dropout's mask"), p_(p), part_(part) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const GradSink::Target dx = sinks[0].Open(dy);
    dropout_backward(CurrentStream(dy.device()), dy, Samples(dy), part_, p_, key_.Unpack(),
                     dx.tensor, dx.accumulate);
  }
  void Release() override { key_.Reset(); }

 private:
  SavedTensor key_;
  double p_;
  SamplePart part_;
};

}  // namespace

Tensor Dropout(const Tensor& x, double p, uint64_t site, SamplePart part) {
  CheckFloating("dropout", x);
  LS_CHECK(p >= 0 && p < 1, "dropout: the probability must be in [0, 1), got ", p);
  const StepState* state = p == 0 ? nullptr : RandomState();
  if (state == nullptr) return x;
  LS_CHECK(state->device() == x.device(), "dropout: x is on ", x.device(),
           ", the StepState of the TrainingScope on ", state->device());
  const Tensor input = x.Detach().Contiguous();
  const Tensor key = Tensor::Empty({kDropoutKeySize}, DType::kI64, x.device());
  Tensor y = Tensor::EmptyLike(input);
  dropout_forward(CurrentStream(x.device()), input, Samples(x), part, p, site,
                  state->device_values(), y, key);
  if (NeedsGrad({&x})) Record(std::make_shared<DropoutNode>(key, p, part), {&x}, {&y});
  return y;
}

}  // namespace lockstep::ops
