#include "kernels/cast/cast.h"

#include "core/autograd.h"
#include "core/slots.h"

namespace lockstep::ops {
namespace {

class CastNode : public Node {
 public:
  explicit CastNode(DType from) : Node("cast"), from_(from) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const GradSink::Target dx = sinks[0].OpenAnyDType(dy.shape(), from_, dy.device());
    if (dy.numel() == 0) return;
    const Stream stream = CurrentStream(dy.device());
    if (dx.accumulate) {
      accumulate_slot(stream, dy, dx.tensor);
    } else {
      copy_slot(stream, dy, dx.tensor);
    }
  }
  void Release() override {}

 private:
  DType from_;
};

}  // namespace

Tensor Cast(const Tensor& x, DType dtype) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && IsFloating(dtype),
           "cast: only floating tensors are cast to floating dtypes, got ", x.Describe(), " and ",
           dtype, "; for others use Tensor::To");
  if (x.dtype() == dtype) return x;
  Tensor y = x.Detach().To(dtype);
  if (NeedsGrad({&x})) Record(std::make_shared<CastNode>(x.dtype()), {&x}, {&y});
  return y;
}

}  // namespace lockstep::ops
