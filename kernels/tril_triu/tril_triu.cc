#include "kernels/tril_triu/tril_triu.h"

#include <algorithm>

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

Tensor Triangle(bool upper, int64_t diagonal, const Tensor& x) {
  const Tensor input = x.Detach().Contiguous();
  const Tensor y = Tensor::EmptyLike(input);
  Shape matrices{1, x.dim(-2), x.dim(-1)};
  for (int i = 0; i + 2 < x.ndim(); ++i) matrices[0] *= x.dim(i);
  triangle_slot(CurrentStream(x.device()), upper, diagonal, input.View(matrices), y.View(matrices));
  return y;
}

Tensor Apply(const char* name, bool upper, int64_t diagonal, const Tensor& x) {
  LS_CHECK(x.defined() && x.ndim() >= 2, name,
           ": x must be a matrix or a batch of matrices [..., M, N], got ", x.Describe());
  // Beyond the corners all diagonals are alike, and i + diagonal does not overflow.
  const int64_t corner = std::max(x.dim(-2), x.dim(-1)) + 1;
  const int64_t within = std::clamp(diagonal, -corner, corner);
  Tensor y = Triangle(upper, within, x);
  RecordOp(name, {&x}, {&y}, {}, [upper, within](const SavedTensors&, Gradients& grads) {
    grads.Put(0, Triangle(upper, within, grads[0]));
  });
  return y;
}

}  // namespace

Tensor Tril(const Tensor& x, int64_t diagonal) { return Apply("tril", false, diagonal, x); }
Tensor Triu(const Tensor& x, int64_t diagonal) { return Apply("triu", true, diagonal, x); }

}  // namespace lockstep::ops
