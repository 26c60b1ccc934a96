#include "kernels/pad/pad.h"

#include "core/autograd/node.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

using Margins = std::vector<std::pair<int64_t, int64_t>>;

// Without the margins.
Tensor Middle(const Tensor& y, const Margins& margins) {
  Tensor middle = y;
  for (int d = 0; d < y.ndim(); ++d) {
    const auto [before, after] = margins[d];
    middle = middle.Slice(d, before, y.dim(d) - after);
  }
  return middle;
}

}  // namespace

Tensor Pad(const Tensor& x, const Margins& margins, double value) {
  LS_CHECK(x.defined(), "pad: x is undefined");
  LS_CHECK(static_cast<int>(margins.size()) == x.ndim(), "pad: a tensor of shape ", x.shape(),
           " needs ", x.ndim(), " pairs {before, after}, one for each dimension, got ",
           margins.size());
  CheckHasValue("pad", x.dtype(), value);
  Shape shape = x.shape();
  for (int d = 0; d < x.ndim(); ++d) {
    const auto [before, after] = margins[d];
    LS_CHECK(before >= 0 && after >= 0, "pad: dimension ", d, " has the margins {", before, ", ",
             after, "}: they must not be negative; to cut elements off, use Slice");
    LS_CHECK(!__builtin_add_overflow(shape[d], before, &shape[d]) &&
                 !__builtin_add_overflow(shape[d], after, &shape[d]),
             "pad: dimension ", d, " with the margins {", before, ", ", after,
             "} does not fit into 63 bits");
  }
  Tensor y = Tensor::Full(shape, value, x.dtype(), x.device());
  Middle(y, margins).CopyFrom(x.Detach());
  RecordOp("pad", {&x}, {&y}, {}, [margins](const SavedTensors&, Gradients& grads) {
    grads.Put(0, Middle(grads[0], margins));
  });
  return y;
}

}  // namespace lockstep::ops
