// Elements picked, and placed, by index.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// In all of these x has any dtype and strides, `dim` is a dimension of x (negative ones count from
// the end) with V elements, and the index is i32 or i64, on x's device, with elements in [0, V): on
// the CPU any other element throws ArgumentError, which names it and its place. A GPU cannot report
// to the host: there IndexSelect and Gather give NaN for them (of integers -1 or the largest value,
// of bools false), and Scatter and ScatterAdd leave them out. Integers and bools have no gradient.
// All save the index.
//
// CUDA devices sort the elements of the index for Scatter, ScatterAdd and the gradients of Gather
// and IndexSelect, unless there is one element for each column: at most 2^30 of them, and V must be
// below 2^30. Where more would have to be sorted, the call throws ArgumentError, also for a
// gradient that is recorded.

// y[..., j, ...] = x[..., index[j], ...]: slices of x, as many as the index, which has one
// dimension, has elements. The gradient of a slice is the sum of those of its copies, in their
// order and in f32 or wider, as in Embedding.
Tensor IndexSelect(const Tensor& x, int dim, const Tensor& index);

// y[..., j, ...] = x[..., index[..., j, ...], ...]. The index has the shape of x, except that its
// size in `dim` is any; y has the shape of the index. The gradient of an element is the sum of
// those of its copies, in their order and in f32 or wider.
Tensor Gather(const Tensor& x, int dim, const Tensor& index);

// x, with y[..., index[..., j, ...], ...] = source[..., j, ...]. The index has the shape of x,
// except that its size in `dim` is any; the source has the shape of the index, and the dtype of x.
// If several elements go to one place, the one with the largest j counts; the others' gradient is
// 0, and so is that of the elements of x that were replaced.
Tensor Scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

// The same, but elements of the source are added to x, which is floating: for one place in the
// order of j, in f32 or wider, rounded once.
Tensor ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

}  // namespace ops

// y[o, j, i] = x[o, index[o, j, i], i]. x: [O, V, I] and y: [O, J, I], contiguous; index: i64
// [O, J, I], of any strides (0 where it was expanded).
inline constinit Slot<void(const Tensor& x, const Tensor& index, const Tensor& y)> gather_slot{
    "gather"};
// y[o, index[o, j, i], i] = source[o, j, i], by ascending j. Here and below: index, i64, and source
// [O, J, I], y [O, V, I], all contiguous.
inline constinit Slot<void(const Tensor& index, const Tensor& source, const Tensor& y)>
    scatter_slot{"scatter"};
// The gradient of that source: dsource[o, j, i] = dy[o, index[o, j, i], i], or 0 where a later j
// has the same index.
inline constinit Slot<void(const Tensor& index, const Tensor& dy, const Tensor& dsource)>
    scatter_source_gradient{"scatter_source_gradient"};
// y[o, index[o, j, i], i] += source[o, j, i], the sum of all for one place in the order of j. For
// floating dtypes.
inline constinit Slot<void(const Tensor& index, const Tensor& source, const Tensor& y)>
    scatter_add_slot{"scatter_add"};

}  // namespace lockstep
