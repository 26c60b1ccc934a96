#include "kernels/one_hot/one_hot.h"

namespace lockstep::ops {

Tensor OneHot(const Tensor& index, int64_t classes, DType dtype) {
  LS_CHECK(index.defined() && (index.dtype() == DType::kI32 || index.dtype() == DType::kI64),
           "one_hot: the index must be i32 or i64, got ", index.Describe());
  LS_CHECK(classes > 0, "one_hot: the number of classes must be positive, got ", classes);
  Shape shape = index.shape();
  shape.push_back(classes);
  const Tensor y = Tensor::Zeros(shape, DType::kU8, index.device());
  const int64_t n = index.numel();
  one_hot_slot(CurrentStream(index.device()), index.Contiguous().View({n}), y.View({n, classes}));
  return y.To(dtype);
}

}  // namespace lockstep::ops
