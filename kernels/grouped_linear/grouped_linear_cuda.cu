#include "core/cuda/blaslt.h"
#include "core/cuda/launch.h"
#include "core/kernel_choices.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/grouped_linear/grouped_mma.h"
#include "kernels/grouped_linear/row_tile.cuh"

// Products of ragged groups in one launch each. The grid depends only on the numbers of rows and
// groups: blocks find their group in the offsets, on the device. Those of 16 bits, and of f32 where
// TF32 is allowed, run on tensor cores (grouped_mma_cuda.cu); here are those of f32.

namespace lockstep::cuda {
namespace {

constexpr int kTile = 32, kDepth = 16, kThreads = 256, kRows = kTile * kTile / kThreads;

// The f32 tile that a block adds up: a[i][l] b[l][j] over l in order, so that an element's bits
// depend only on its row and column. A thread has kRows rows of a column.
class Tile {
 public:
  // load_a(i, l), load_b(l, j): elements of the tile's rows i, columns j, at depth l of `depth`;
  // rows and columns beyond the operands' ends are the loaders' business. All threads call it.
  // a_along: neighbouring threads read a along l, rather than along its rows; b_along likewise.
  template <bool a_along, bool b_along, class LoadA, class LoadB>
  __device__ void Multiply(int64_t depth, const LoadA& load_a, const LoadB& load_b) {
    using Row = float[kTile + 1];  // one more: transposed writes meet different banks
    __shared__ Row a_tile[kDepth];
    __shared__ Row b_tile[kDepth];
    const int thread = static_cast<int>(threadIdx.x);
    for (int64_t first = 0; first < depth; first += kDepth) {
      for (int i = thread; i < kTile * kDepth; i += kThreads) {
        const int ar = a_along ? i / kDepth : i % kTile, al = a_along ? i % kDepth : i / kTile;
        a_tile[al][ar] = first + al < depth ? load_a(ar, first + al) : 0.0f;
        const int bc = b_along ? i / kDepth : i % kTile, bl = b_along ? i % kDepth : i / kTile;
        b_tile[bl][bc] = first + bl < depth ? load_b(first + bl, bc) : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int l = 0; l < kDepth; ++l) {
        const float v = b_tile[l][Column()];
#pragma unroll
        for (int r = 0; r < kRows; ++r) sum_[r] = fmaf(a_tile[l][FirstRow() + r], v, sum_[r]);
      }
      __syncthreads();
    }
  }

  // Writes, or adds, the elements whose row is below `rows`, to c with rows of `columns` elements,
  // of which the tile's first is number `first_column`.
  template <class C>
  __device__ void Store(C* c, int64_t rows, int64_t first_column, int64_t columns,
                        bool accumulate) const {
    const int64_t column = first_column + Column();
    if (column >= columns) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (FirstRow() + r >= rows) break;
      C& out = c[(FirstRow() + r) * columns + column];
      out = Convert<C>(accumulate ? ToFloat(out) + sum_[r] : sum_[r]);
    }
  }

 private:
  __device__ static int Column() { return static_cast<int>(threadIdx.x) % kTile; }
  __device__ static int FirstRow() { return static_cast<int>(threadIdx.x) / kTile * kRows; }

  float sum_[kRows] = {};
};

// to[r] = from[r] op(weight[group of r]), or += that: kTransposed: weight [E, out, in], else
// [E, in, out].
// Grid: tiles of 32 x 32 of the result, those of the same rows side by side. Shared memory: a tile
// of either operand. Deterministic: sums run over `in` in order.
template <bool kTransposed>
__global__ void __launch_bounds__(kThreads)
    GroupedProductKernel(const float* from, const float* weight, const int* offsets, int groups,
                         int64_t in, int64_t out, bool accumulate, float* to) {
  const int64_t tiles = DivideUp(out, kTile);
  const RowTile<kTile> at(offsets, groups, blockIdx.x / tiles);
  const int64_t first_column = blockIdx.x % tiles * kTile;
  const float *a = from + at.first * in, *b = weight + at.group * in * out;
  Tile tile;
  tile.Multiply<true, kTransposed>(
      at.rows > 0 ? in : 0, [&](int i, int64_t l) { return i < at.rows ? a[i * in + l] : 0.0f; },
      [&](int64_t l, int j) {
        const int64_t column = first_column + j;
        if (column >= out) return 0.0f;
        return kTransposed ? b[column * in + l] : b[l * out + column];
      });
  tile.Store(to + at.first * out, at.rows, first_column, out, accumulate);
}

// dweight[e] = dy^T x over the rows of group e, or += that.
// Grid: x has the tiles of 32 x 32 of a weight, side by side, y the groups. Shared memory: a tile
// of either operand. Deterministic: sums run over the rows in order.
template <class T, class D>
__global__ void __launch_bounds__(kThreads)
    GroupedWeightKernel(const T* x, const T* dy, const int* offsets, int64_t k, int64_t n,
                        bool accumulate, D* dweight) {
  const int64_t tiles = DivideUp(k, kTile);
  const int64_t first_row = blockIdx.x / tiles * kTile, first_column = blockIdx.x % tiles * kTile;
  const int64_t begin = offsets[blockIdx.y], rows = offsets[blockIdx.y + 1] - begin;
  Tile tile;
  tile.Multiply<false, false>(
      rows,
      [&](int i, int64_t l) {
        return first_row + i < n ? ToFloat(dy[(begin + l) * n + first_row + i]) : 0.0f;
      },
      [&](int64_t l, int j) {
        return first_column + j < k ? ToFloat(x[(begin + l) * k + first_column + j]) : 0.0f;
      });
  tile.Store(dweight + (blockIdx.y * n + first_row) * k, n - first_row, first_column, k,
             accumulate);
}

bool OnTensorCores(DType dtype) { return dtype != DType::kF32 || Tf32Allowed(); }

void GroupedProduct(const char* name, Stream stream, const Tensor& from, const Tensor& weight,
                    bool transposed, const Tensor& offsets, const Tensor& to, bool accumulate) {
  if (to.numel() == 0) return;
  if (OnTensorCores(from.dtype())) {
    return GroupedProductByMma(name, stream, from, weight, transposed, offsets, to, accumulate);
  }
  const int64_t groups = weight.dim(0), out = to.dim(1);
  const int64_t tiles = RowTiles(from.dim(0), groups, kTile) * DivideUp(out, kTile);
  DispatchBool(transposed, [&](auto kTransposed) {
    Launch({name, from, weight}, GroupedProductKernel<decltype(kTransposed)::value>,
           Blocks(tiles, 1), kThreads, 0, stream, Data<float>(from), Data<float>(weight),
           Data<int>(offsets), static_cast<int>(groups), from.dim(1), out, accumulate,
           Data<float>(to));
  });
}

void NoteMixedWeight(const char* name, DType from, DType to, int64_t groups, int64_t k, int64_t n) {
  const int64_t problem[] = {groups, k, n, static_cast<int64_t>(from), static_cast<int64_t>(to)};
  if (!IsNewProblem(name, problem)) return;
  NoteKernelChoice(name, problem,
                   {.problem = StrCat(from, " -> ", to, "[", groups, ", ", n, ", ", k, "]"),
                    .kernel = "tiles in f32",
                    .why_slow = "on tensor cores a weight's gradient has its rows' dtype, or f32"});
}

void GroupedWeight(const char* name, Stream stream, const GroupedLinearBackwardArgs& args) {
  const Tensor& dweight = args.dweight.tensor;
  if (dweight.numel() == 0) return;
  const DType from = args.dy.dtype(), to = dweight.dtype();
  const int64_t groups = dweight.dim(0), n = dweight.dim(1), k = dweight.dim(2);
  if (OnTensorCores(from)) {
    if (to == from || to == DType::kF32) return GroupedWeightByMma(name, stream, args);
    NoteMixedWeight(name, from, to, groups, k, n);
  }
  DispatchFloat(name, from, [&]<class T>(TypeTag<T>) {
    DispatchFloat(name, to, [&]<class D>(TypeTag<D>) {
      // The others are on tensor cores.
      if constexpr (!kIs16Bit<T> || (kIs16Bit<D> && !std::is_same_v<T, D>)) {
        const dim3 grid(Blocks(DivideUp(n, kTile) * DivideUp(k, kTile), 1),
                        static_cast<unsigned>(groups));
        Launch({name, args.x, args.dy}, GroupedWeightKernel<T, D>, grid, kThreads, 0, stream,
               Data<T>(args.x), Data<T>(args.dy), Data<int>(args.offsets), k, n,
               args.dweight.accumulate, Data<D>(dweight));
      }
    });
  });
}

void GroupedLinearForwardCuda(Stream stream, const GroupedLinearForwardArgs& args) {
  GroupedProduct("grouped_linear_forward", stream, args.x, args.weight, true, args.offsets, args.y,
                 false);
}

void GroupedLinearBackwardCuda(Stream stream, const GroupedLinearBackwardArgs& args) {
  constexpr const char* kName = "grouped_linear_backward";
  if (args.dx.tensor.defined()) {
    GroupedProduct(kName, stream, args.dy, args.weight, false, args.offsets, args.dx.tensor,
                   args.dx.accumulate);
  }
  if (args.dweight.tensor.defined()) GroupedWeight(kName, stream, args);
}

LS_REGISTER(grouped_linear_forward, DeviceType::kCuda, GroupedLinearForwardCuda);
LS_REGISTER(grouped_linear_backward, DeviceType::kCuda, GroupedLinearBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
