// How the partial sums of the ranks of a layer become its sums.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/tensor.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Of two ranks or more. All calls are collective.
class PartialSums {
 public:
  virtual ~PartialSums() = default;
  // The dtype of a rank's partial sums of a result in `dtype`.
  virtual DType TypeOf(DType dtype) const = 0;
  // The sum over ranks of each one's `sum` [B, T, ...], in dtype; a rank gets its part of the
  // sequence, [B, T / size, ...]. Throws ArgumentError unless the ranks divide T.
  virtual Tensor Scatter(const Tensor& sum, DType dtype) const = 0;
  // The same, on every rank all of it; of any shape.
  virtual Tensor All(const Tensor& sum, DType dtype) const = 0;
};

// Partial sums in f32, f64 for f64, added in adjacent pairs of ranks and rounded once.
std::unique_ptr<const PartialSums> MakeOrderedSums(ProcessGroup* group);

// Partial sums in the result's dtype, added by the library in its order: half the bytes for bf16,
// and up to size + 1 roundings in the place of one, since a ring rounds at each rank. Those of f16
// are in f32: they may be beyond its range where their sum is not.
std::unique_ptr<const PartialSums> MakeLibrarySums(ProcessGroup* group);

// Adds n tensors in adjacent pairs into the first, and returns that. tensor(i) makes or finds the
// i-th: it may be overwritten.
Tensor AddInPairs(int64_t n, const std::function<Tensor(int64_t i)>& tensor);

}  // namespace lockstep::dist
