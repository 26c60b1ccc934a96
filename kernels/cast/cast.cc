#include "kernels/cast/cast.h"

#include "core/error.h"

namespace lockstep::ops {

Tensor Cast(const Tensor& x, DType dtype) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && IsFloating(dtype),
           "cast: only floating tensors are cast to floating dtypes, got ", x.Describe(), " and ",
           dtype, "; for others use Tensor::To");
  return x.To(dtype);
}

}  // namespace lockstep::ops
