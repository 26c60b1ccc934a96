#include "kernels/topk/topk.h"

#include "kernels/checks.h"
#include "kernels/index/index.h"

namespace lockstep::ops {
namespace {

ValuesAndIndices FirstSorted(const char* op, const Tensor& x, int64_t k, int dim, bool descending) {
  LS_CHECK(0 <= k && k <= x.dim(dim), op, ": dimension ", dim, " of a tensor of shape ", x.shape(),
           " has ", x.dim(dim), " elements, not ", k);
  const Tensor rows = x.Detach().Transpose(dim, -1).Contiguous();
  Shape shape = rows.shape();
  const int64_t n = shape[-1];
  shape[-1] = k;
  const Tensor index = Tensor::Empty(shape, DType::kI64, x.device());
  int64_t count = 1;
  for (int i = 0; i + 1 < rows.ndim(); ++i) count *= rows.dim(i);
  sort_rows(CurrentStream(x.device()), descending, rows.View({count, n}), index.View({count, k}));
  const Tensor indices = index.Transpose(dim, -1).Contiguous();
  return {Gather(x, dim, indices), indices};
}

int CheckedDim(const char* op, const Tensor& x, int dim) {
  CheckFloating(op, x);
  CheckSorts(op, "it sorts all elements", x.device(), x.numel());
  return DimOf(op, x.shape(), dim);
}

}  // namespace

ValuesAndIndices TopK(const Tensor& x, int64_t k, int dim, bool largest) {
  return FirstSorted("topk", x, k, CheckedDim("topk", x, dim), largest);
}

ValuesAndIndices Sort(const Tensor& x, int dim, bool descending) {
  const int at = CheckedDim("sort", x, dim);
  return FirstSorted("sort", x, x.dim(at), at, descending);
}

}  // namespace lockstep::ops
