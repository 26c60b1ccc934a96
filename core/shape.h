// Sizes and strides of a tensor: up to kMaxDims values in place, no heap.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>

#include "core/error.h"

namespace lockstep {

class Shape {
 public:
  static constexpr int kMaxDims = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims) {
    LS_CHECK(dims.size() <= kMaxDims, "a tensor has at most ", kMaxDims, " dimensions, got ",
             dims.size());
    for (int64_t d : dims) push_back(d);
  }

  int ndim() const { return ndim_; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + ndim_; }
  // The index may be negative: -1 is the last dimension.
  int64_t operator[](int i) const { return dims_[Index(i)]; }
  int64_t& operator[](int i) { return dims_[Index(i)]; }
  void push_back(int64_t d) {
    LS_CHECK(ndim_ < kMaxDims, "a tensor has at most ", kMaxDims, " dimensions");
    dims_[ndim_++] = d;
  }
  // Product of the sizes; 1 for a scalar. Throws on a negative size or on overflow of int64.
  int64_t numel() const;
  // Row-major strides in elements. Throws as numel() does.
  Shape ContiguousStrides() const;
  bool operator==(const Shape& other) const {
    return ndim_ == other.ndim_ && std::equal(begin(), end(), other.begin());
  }

 private:
  int Index(int i) const {
    const int at = i < 0 ? i + ndim_ : i;
    LS_CHECK(at >= 0 && at < ndim_, "there is no dimension ", i, " in a tensor with ", ndim_,
             " dimensions");
    return at;
  }

  std::array<int64_t, kMaxDims> dims_{};
  int ndim_ = 0;
};

// "[2, 3]"
std::ostream& operator<<(std::ostream& out, const Shape& shape);

// The dimension of `shape` that `dim` means, where negative ones count from the end. Throws
// ArgumentError, which names `op`, if there is none.
inline int DimOf(const char* op, const Shape& shape, int dim) {
  const int at = dim < 0 ? dim + shape.ndim() : dim;
  LS_CHECK(at >= 0 && at < shape.ndim(), op, ": there is no dimension ", dim,
           " in a tensor of shape ", shape);
  return at;
}

// [outer, size, inner]: how many elements lie before, in and after dimension `dim`, which is not
// negative. A contiguous tensor can be viewed in this shape.
inline Shape BlocksAround(const Shape& shape, int dim) {
  Shape blocks{1, shape[dim], 1};
  for (int i = 0; i < dim; ++i) blocks[0] *= shape[i];
  for (int i = dim + 1; i < shape.ndim(); ++i) blocks[2] *= shape[i];
  return blocks;
}

}  // namespace lockstep
