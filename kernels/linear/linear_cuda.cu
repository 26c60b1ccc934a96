#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/linear/linear.h"
#include "kernels/matmul/gemm_cuda.h"
#include "kernels/matmul/product_of.h"

namespace lockstep::cuda {
namespace {

// ---- Few rows: each has the same bits as alone, which cuBLASLt does not promise. ----

constexpr int kFewRowsThreads = 256, kFewRowsColumns = kFewRowsThreads / kWarpSize;

// y = activation(x weight^T + bias) for up to Rows rows of x. The weight is read once.
// Grid: one warp per column of y, eight per block. No shared memory. Deterministic: the order of a
// sum depends only on k, not on the number of rows or the alignment.
template <int Rows, bool kAligned, class T>
__global__ void __launch_bounds__(kFewRowsThreads)
    LinearFewRowsKernel(const T* x, const T* weight, const T* bias, int64_t m, int64_t n, int64_t k,
                        bool gelu, T* pre_activation, T* y) {
  constexpr int N = kPackSize<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kFewRowsColumns + warp;
  if (column >= n) return;
  float sum[Rows] = {};
  for (int64_t at = lane * N; at < k; at += kWarpSize * N) {
    const Packed<T> w = LoadRow<kAligned, N>(weight + column * k, at, k);
#pragma unroll
    for (int row = 0; row < Rows; ++row) {
      if (row >= m) break;
      const Packed<T> v = LoadRow<kAligned, N>(x + row * k, at, k);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[row] = fmaf(ToFloat(v[i]), ToFloat(w[i]), sum[row]);
    }
  }
  const float b = bias != nullptr ? ToFloat(bias[column]) : 0.0f;
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    const float z = WarpSum(sum[row]) + b;
    if (row >= m || lane != row) continue;
    const int64_t at = row * n + column;
    if (pre_activation != nullptr) pre_activation[at] = Convert<T>(z);
    y[at] = Convert<T>(gelu ? Gelu(z) : z);
  }
}

template <class T>
void LinearFewRows(Stream stream, const LinearForwardArgs& args) {
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.weight.dim(0);
  const T *x = Data<T>(args.x), *weight = Data<T>(args.weight);
  const auto run = [&](auto rows, auto aligned) {
    Launch({"linear_few_rows", args.x, args.weight},
           LinearFewRowsKernel<decltype(rows)::value, decltype(aligned)::value, T>,
           Blocks(n, kFewRowsColumns), kFewRowsThreads, 0, stream, x, weight,
           DataOrNull<T>(args.bias), m, n, k, args.activation == Activation::kGelu,
           DataOrNull<T>(args.pre_activation), Data<T>(args.y));
  };
  DispatchBool(AlignedRows(k, x, weight), [&](auto aligned) {
    if (m == 1) return run(std::integral_constant<int, 1>(), aligned);
    run(std::integral_constant<int, static_cast<int>(kFewRows)>(), aligned);
  });
}

// ---- The slots. ----

void LinearForwardCuda(Stream stream, const LinearForwardArgs& args) {
  if (args.y.numel() == 0) return;
  if (args.x.dim(0) <= kFewRows) {
    return DispatchFloat("linear", args.x.dtype(),
                         [&]<class T>(TypeTag<T>) { LinearFewRows<T>(stream, args); });
  }
  GemmArgs g = ProductOf<GemmArgs>(args.x, false, args.weight, true, args.y);
  if (args.bias.defined()) g.bias = args.bias.raw_data();
  g.gelu = args.activation == Activation::kGelu;
  g.full_f32 = args.full_f32;
  if (args.pre_activation.defined()) g.pre_activation = args.pre_activation.raw_data();
  Gemm(stream, g);
}

void LinearBackwardActivationCuda(Stream stream, const LinearBackwardActivationArgs& args) {
  LS_INVARIANT(args.activation == Activation::kGelu);
  MultiplyByGeluDerivative(stream, args.dy.dtype(), args.pre_activation.raw_data(),
                           args.dy.raw_data(), args.dy.numel(), args.d_pre.raw_data());
}

// cuBLASLt could sum dy's rows while it multiplies (CUBLASLT_EPILOGUE_BGRADB), but in an order that
// depends on the algorithm it chose: a bias would get different bits when its weight is frozen, or
// when its gradient is added to. So they are summed here, in one more pass over dy.
void BackwardBias(Stream stream, const LinearBackwardArgs& args) {
  DispatchFloat("linear", args.dy.dtype(), [&]<class T>(TypeTag<T>) {
    const int64_t n = args.dy.dim(1);
    ColumnSums("linear_backward_bias", stream, Data<T>(args.dy), args.dy.dim(0), n, n,
               args.dbias.tensor, args.dbias.accumulate);
  });
}

void LinearBackwardCuda(Stream stream, const LinearBackwardArgs& args) {
  if (args.dx.tensor.defined()) {
    GemmArgs g = ProductOf<GemmArgs>(args.dy, false, args.weight, false, args.dx.tensor);
    g.accumulate = args.dx.accumulate;
    g.full_f32 = args.full_f32;
    if (args.activation == Activation::kGelu) g.gelu_input = args.pre_activation.raw_data();
    Gemm(stream, g);
  }
  if (args.dweight.tensor.defined()) {
    GemmArgs g = ProductOf<GemmArgs>(args.dy, true, args.x, false, args.dweight.tensor);
    g.accumulate = args.dweight.accumulate;
    g.full_f32 = args.full_f32;
    Gemm(stream, g);
  }
  if (args.dbias.tensor.defined()) BackwardBias(stream, args);
}

LS_REGISTER(linear_forward, DeviceType::kCuda, LinearForwardCuda);
LS_REGISTER(linear_backward_activation, DeviceType::kCuda, LinearBackwardActivationCuda);
LS_REGISTER(linear_backward, DeviceType::kCuda, LinearBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
