#include "kernels/concat/concat.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

void CheckFits(const Tensor& first, const Tensor& x, size_t index, int dim) {
  bool fits = x.defined() && x.ndim() == first.ndim() && x.dtype() == first.dtype() &&
              x.device() == first.device();
  for (int i = 0; fits && i < x.ndim(); ++i) fits = i == dim || x.dim(i) == first.dim(i);
  LS_CHECK(fits, "concat: tensor ", index, " (", x.Describe(), ") does not fit the first (",
           first.Describe(), "): they may differ only in dimension ", dim);
}

}  // namespace

Tensor Concat(const std::vector<Tensor>& tensors, int dim) {
  LS_CHECK(!tensors.empty() && tensors[0].defined(), "concat: no tensors given");
  const Tensor& first = tensors[0];
  const int at = DimOf("concat", first.shape(), dim);
  Shape shape = first.shape();
  shape[at] = 0;
  std::vector<const Tensor*> inputs;
  for (const Tensor& x : tensors) {
    CheckFits(first, x, inputs.size(), at);
    inputs.push_back(&x);
    shape[at] += x.dim(at);
  }
  Tensor y = Tensor::Empty(shape, first.dtype(), first.device());
  int64_t begin = 0;
  for (const Tensor& x : tensors) {
    y.Slice(at, begin, begin + x.dim(at)).CopyFrom(x.Detach());
    begin += x.dim(at);
  }
  Tensor* const output = &y;
  RecordOp("concat", inputs, std::span(&output, 1), {},
           [at](const SavedTensors&, Gradients& grads) {
             int64_t begin = 0;
             for (size_t i = 0; i < grads.inputs(); ++i) {
               const int64_t end = begin + grads.spec(i).shape[at];
               if (grads.needs(i)) grads.Put(i, grads[0].Slice(at, begin, end));
               begin = end;
             }
           });
  return y;
}

Tensor Stack(const std::vector<Tensor>& tensors, int dim) {
  LS_CHECK(!tensors.empty() && tensors[0].defined(), "stack: no tensors given");
  const Tensor& first = tensors[0];
  const int at = dim < 0 ? dim + first.ndim() + 1 : dim;
  LS_CHECK(at >= 0 && at <= first.ndim(), "stack: dimension ", dim,
           " cannot be added to tensors of shape ", first.shape());
  std::vector<Tensor> slices;
  for (const Tensor& x : tensors) {
    LS_CHECK(x.defined() && x.shape() == first.shape() && x.dtype() == first.dtype() &&
                 x.device() == first.device(),
             "stack: tensor ", slices.size(), " (", x.Describe(),
             ") must have the shape, dtype and device of the first (", first.Describe(), ")");
    slices.push_back(x.Unsqueeze(at));
  }
  return Concat(slices, at);
}

Tensor Repeat(const Tensor& x, const std::vector<int64_t>& counts) {
  LS_CHECK(x.defined() && std::ssize(counts) == x.ndim(), "repeat: ", x.Describe(),
           " needs a count for each dimension, got ", counts.size());
  // A dimension of copies before each that has any: so Expand sums their gradients, once.
  Shape split, expanded, merged;
  for (int d = 0; d < x.ndim(); ++d) {
    LS_CHECK(counts[d] >= 1, "repeat: the count of dimension ", d, " must be at least 1, got ",
             counts[d]);
    if (counts[d] > 1) {
      split.push_back(1);
      expanded.push_back(counts[d]);
    }
    split.push_back(x.dim(d));
    expanded.push_back(x.dim(d));
    merged.push_back(counts[d] * x.dim(d));
  }
  return x.Reshape(split).Expand(expanded).Reshape(merged).Contiguous();
}

}  // namespace lockstep::ops
