#include "core/cuda/launch.h"
#include "core/kernel_choices.h"
#include "kernels/grouped_linear/grouped_mma.h"
#include "kernels/grouped_linear/mma_tile.cuh"
#include "kernels/grouped_linear/row_tile.cuh"

namespace lockstep::cuda {
namespace {

template <class T, bool kTransposed, int kRows>
using ProductShape = MmaShape<T, true, kTransposed, kRows>;

// to[r] = from[r] op(weight[group of r]), or += that: kTransposed: weight [E, out, in], else
// [E, in, out].
// Grid: tiles of kRows x 128 of the result, those of the same rows side by side. Shared memory:
// three steps' tiles of either operand. Deterministic: sums run over `in` in order.
template <bool kTransposed, int kRows, bool kAligned, class T>
__global__ void __launch_bounds__(kMmaThreads)
    GroupedProductMmaKernel(const T* from, const T* weight, const int* offsets, int groups, int in,
                            int64_t out, bool accumulate, T* to) {
  using Shape = ProductShape<T, kTransposed, kRows>;
  constexpr int kColumns = Shape::kColumns;
  const int64_t tiles = DivideUp(out, kColumns);
  const RowTile<kRows> at(offsets, groups, blockIdx.x / tiles);
  if (at.rows <= 0) return;
  const int64_t column = blockIdx.x % tiles * kColumns, columns = out - column;
  const int64_t stride = kTransposed ? in : out;
  const T* b = weight + at.group * out * in + (kTransposed ? column * stride : column);
  typename Shape::Sums c;
  MultiplyByMma<Shape, kAligned>(
      MmaOperand<T, true>{from + at.first * in, in, static_cast<int>(at.rows)},
      MmaOperand<T, kTransposed>{b, stride, static_cast<int>(Min<int64_t>(columns, kColumns))}, in,
      c);
  StoreMmaSums<Shape, kAligned>(
      c, MmaTarget<T>{to + at.first * out + column, out, at.rows, columns, accumulate});
}

template <class T>
using WeightShape = MmaShape<T, false, false, 128>;

// dweight[e] = dy^T x over the rows of group e, or += that.
// Grid: x has the tiles of 128 x 128 of a weight, side by side, y the groups. Shared memory as
// above. Deterministic: sums run over the rows in order.
template <bool kAligned, class T, class D>
__global__ void __launch_bounds__(kMmaThreads)
    GroupedWeightMmaKernel(const T* x, const T* dy, const int* offsets, int64_t k, int64_t n,
                           bool accumulate, D* dweight) {
  using Shape = WeightShape<T>;
  constexpr int kTile = Shape::kColumns;
  const int64_t tiles = DivideUp(k, kTile);
  const int64_t row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  const int64_t begin = offsets[blockIdx.y], rows = offsets[blockIdx.y + 1] - begin;
  const auto within = [](int64_t left) { return static_cast<int>(Min<int64_t>(left, kTile)); };
  typename Shape::Sums c;
  MultiplyByMma<Shape, kAligned>(
      MmaOperand<T, false>{dy + begin * n + row, n, within(n - row)},
      MmaOperand<T, false>{x + begin * k + column, k, within(k - column)}, static_cast<int>(rows),
      c);
  StoreMmaSums<Shape, kAligned>(c, MmaTarget<D>{dweight + (blockIdx.y * n + row) * k + column, k,
                                                n - row, k - column, accumulate});
}

// Notes that the elements of a product [.., in] x [groups, in, out] are read one by one.
void NoteUnaligned(const char* name, DType dtype, int64_t groups, int64_t in, int64_t out) {
  const int64_t problem[] = {groups, in, out, static_cast<int64_t>(dtype)};
  if (!IsNewProblem(name, problem)) return;
  NoteKernelChoice(
      name, problem,
      {.problem = StrCat(dtype, ", ", groups, " groups, ", in, " -> ", out),
       .kernel = "tensor cores, elements read one by one",
       .why_slow = "rows are not whole multiples of 16 bytes, or begin at other addresses"});
}

}  // namespace

void GroupedProductByMma(const char* name, Stream stream, const Tensor& from, const Tensor& weight,
                         bool transposed, const Tensor& offsets, const Tensor& to,
                         bool accumulate) {
  const int64_t rows = from.dim(0), groups = weight.dim(0), in = from.dim(1), out = to.dim(1);
  LS_CHECK(in <= INT32_MAX, name, ": rows of ", in, " numbers are too long");
  DispatchFloat(name, from.dtype(), [&]<class T>(TypeTag<T>) {
    const T *a = Data<T>(from), *b = Data<T>(weight);
    T* c = Data<T>(to);
    const bool all_aligned =
        AlignedRows(in, a, b) && (transposed || AlignedRows(out, b)) && AlignedMmaTarget(c, out);
    if (!all_aligned) NoteUnaligned(name, from.dtype(), groups, in, out);
    const auto run = [&](auto kTransposed, auto kRows, auto kAligned) {
      using Shape = ProductShape<T, decltype(kTransposed)::value, decltype(kRows)::value>;
      const int64_t tiles = RowTiles(rows, groups, kRows) * DivideUp(out, Shape::kColumns);
      Launch({name, from, weight},
             GroupedProductMmaKernel<decltype(kTransposed)::value, decltype(kRows)::value,
                                     decltype(kAligned)::value, T>,
             Blocks(tiles, 1), kMmaThreads, Shape::kBytes, stream, a, b, Data<int>(offsets),
             static_cast<int>(groups), static_cast<int>(in), out, accumulate, c);
    };
    DispatchBool(transposed, [&](auto kTransposed) {
      DispatchBool(all_aligned, [&](auto kAligned) {
        // Of the groups' sizes only the mean is known here. Bits do not depend on the choice.
        if constexpr (decltype(kAligned)::value) {
          if (rows >= 64 * groups) {
            return run(kTransposed, std::integral_constant<int, 128>(), kAligned);
          }
        }
        run(kTransposed, std::integral_constant<int, 32>(), kAligned);
      });
    });
  });
}

void GroupedWeightByMma(const char* name, Stream stream, const GroupedLinearBackwardArgs& args) {
  const Tensor& to = args.dweight.tensor;
  const int64_t groups = to.dim(0), n = to.dim(1), k = to.dim(2);
  const auto run = [&]<class T, class D>(TypeTag<T>, TypeTag<D>) {
    using Shape = WeightShape<T>;
    const T *x = Data<T>(args.x), *dy = Data<T>(args.dy);
    D* dweight = Data<D>(to);
    const dim3 grid(Blocks(DivideUp(n, Shape::kColumns) * DivideUp(k, Shape::kColumns), 1),
                    static_cast<unsigned>(groups));
    const bool all_aligned =
        AlignedRows(k, x) && AlignedRows(n, dy) && AlignedMmaTarget(dweight, k);
    if (!all_aligned) NoteUnaligned(name, args.dy.dtype(), groups, k, n);
    DispatchBool(all_aligned, [&](auto kAligned) {
      Launch({name, args.x, args.dy}, GroupedWeightMmaKernel<decltype(kAligned)::value, T, D>, grid,
             kMmaThreads, Shape::kBytes, stream, x, dy, Data<int>(args.offsets), k, n,
             args.dweight.accumulate, dweight);
    });
  };
  DispatchFloat(name, args.dy.dtype(), [&](auto tag) {
    if (to.dtype() == DType::kF32) return run(tag, TypeTag<float>());
    run(tag, tag);
  });
}

}  // namespace lockstep::cuda
