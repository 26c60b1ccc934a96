#include "kernels/mix/mix.h"

#include <utility>

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

void Check(const Tensor& x, const Tensor& a, const Tensor& z, const Tensor& b) {
  CheckFloating("mix", x);
  LS_CHECK(
      z.defined() && z.shape() == x.shape() && z.dtype() == x.dtype() && z.device() == x.device(),
      "mix: z must match x (", x.Describe(), "), got ", z.Describe());
  for (const Tensor* factor : {&a, &b}) {
    CheckNormParameter("mix", "a factor", *factor, x, 1);
  }
}

void Backward(const SavedTensors& saved, Gradients& grads) {
  MixBackwardArgs args;
  args.x = saved[0];
  args.a = saved[1];
  args.z = saved[2];
  args.b = saved[3];
  args.dy = grads[0];
  if (grads.needs(0)) args.dx = Tensor::EmptyLike(args.x);
  if (grads.needs(2)) args.dz = Tensor::EmptyLike(args.x);
  if (grads.needs(1) || grads.needs(3)) {
    args.sums = Tensor::Empty({2}, args.a.dtype(), args.a.device());
  }
  mix_backward(CurrentStream(args.x.device()), args);
  // Finished, and not added to what is there: so what a stream's start gets from the blocks of a
  // model has the same bits wherever a pipeline cuts these.
  if (grads.needs(0)) grads.Put(0, std::exchange(args.dx, {}));
  if (grads.needs(2)) grads.Put(2, std::exchange(args.dz, {}));
  if (grads.needs(1)) grads.OpenAnyDType(1).Write(args.sums.Slice(0, 0, 1));
  if (grads.needs(3)) grads.OpenAnyDType(3).Write(args.sums.Slice(0, 1, 2));
}

}  // namespace

Tensor Mix(const Tensor& x, const Tensor& a, const Tensor& z, const Tensor& b) {
  Check(x, a, z, b);
  const DType wide = AccumulationDType(x.dtype());
  const Tensor first = x.Detach().Contiguous(), second = z.Detach().Contiguous();
  const Tensor wide_a = a.Detach().To(wide), wide_b = b.Detach().To(wide);
  Tensor y = Tensor::EmptyLike(first);
  mix_forward(CurrentStream(x.device()), first, wide_a, second, wide_b, y);
  RecordOp("mix", {&x, &a, &z, &b}, {&y},
           {{first, "an input of mix"},
            {wide_a, "a factor of mix"},
            {second, "an input of mix"},
            {wide_b, "a factor of mix"}},
           Backward);
  return y;
}

}  // namespace lockstep::ops
