#include "core/shape.h"

#include <ostream>

namespace lockstep {

int64_t Shape::numel() const {
  // The strides of an empty shape must fit, too, so sizes of 0 count as 1 here.
  int64_t n = 1;
  bool empty = false;
  for (int64_t d : *this) {
    LS_CHECK(d >= 0, "negative size in shape ", *this);
    empty |= d == 0;
    LS_CHECK(d == 0 || !__builtin_mul_overflow(n, d, &n), "shape ", *this,
             " has too many elements");
  }
  return empty ? 0 : n;
}

Shape Shape::ContiguousStrides() const {
  numel();  // throws if the strides do not fit
  Shape strides = *this;
  int64_t step = 1;
  for (int i = ndim_ - 1; i >= 0; --i) {
    strides.dims_[i] = step;
    step *= dims_[i] > 0 ? dims_[i] : 1;
  }
  return strides;
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.ndim(); ++i) out << (i ? ", " : "") << shape[i];
  return out << ']';
}

}  // namespace lockstep
