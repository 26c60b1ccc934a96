#include "core/cuda/blaslt.h"
#include "core/cuda/launch.h"
#include "core/kernel_choices.h"
#include "core/philox.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/matmul/gemm_cuda.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/product_of.h"

namespace lockstep::cuda {
namespace {

// ---- What cuBLASLt does not do. ----

constexpr int kTile = 32, kDepth = 16, kThreads = 256, kRows = kTile * kTile / kThreads;

template <class T, class C>
struct GemmOperands {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  const T *a, *b;
  C* c;
  bool accumulate;
  const C* bias;  // or null
  bool gelu;
  C* pre_activation;    // or null
  const C* gelu_input;  // or null
};

// Grid: one block per tile of 32 x 32 of C, tiles of a row of C side by side, matrices of the batch
// one after the other; a thread has four rows of a column. Shared memory: a tile of A and one of B.
// Deterministic: sums run over k in order.
template <class T, class C>
__global__ void __launch_bounds__(kThreads) GemmKernel(GemmOperands<T, C> g) {
  using Row = float[kTile + 1];  // one more: transposed writes meet different banks
  __shared__ Row a_tile[kDepth];
  __shared__ Row b_tile[kDepth];
  const int64_t tiles_n = DivideUp(g.n, kTile), tiles_m = DivideUp(g.m, kTile);
  const int64_t first_column = blockIdx.x % tiles_n * kTile;
  const int64_t first_row = blockIdx.x / tiles_n % tiles_m * kTile;
  const int64_t matrix = blockIdx.x / tiles_n / tiles_m;
  const T *a = g.a + matrix * g.m * g.k, *b = g.b + matrix * g.k * g.n;
  const int thread = static_cast<int>(threadIdx.x), x = thread % kTile, y = thread / kTile;
  float sum[kRows] = {};
  for (int64_t depth = 0; depth < g.k; depth += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += kThreads) {
      const int ar = g.transpose_a ? i % kTile : i / kDepth;
      const int al = g.transpose_a ? i / kTile : i % kDepth;
      const int64_t row = first_row + ar, la = depth + al;
      const bool in_a = row < g.m && la < g.k;
      a_tile[al][ar] = in_a ? ToFloat(a[g.transpose_a ? la * g.m + row : row * g.k + la]) : 0.0f;
      const int bc = g.transpose_b ? i / kDepth : i % kTile;
      const int bl = g.transpose_b ? i % kDepth : i / kTile;
      const int64_t column = first_column + bc, lb = depth + bl;
      const bool in_b = column < g.n && lb < g.k;
      b_tile[bl][bc] =
          in_b ? ToFloat(b[g.transpose_b ? column * g.k + lb : lb * g.n + column]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int l = 0; l < kDepth; ++l) {
      const float v = b_tile[l][x];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r] = fmaf(a_tile[l][y * kRows + r], v, sum[r]);
    }
    __syncthreads();
  }
  const int64_t column = first_column + x;
  if (column >= g.n) return;
  const float bias = g.bias != nullptr ? ToFloat(g.bias[column]) : 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first_row + y * kRows + r;
    if (row >= g.m) break;
    const int64_t at = (matrix * g.m + row) * g.n + column;
    float z = sum[r] + bias;
    if (g.accumulate) z += ToFloat(g.c[at]);
    if (g.gelu_input != nullptr) z *= GeluDerivative(ToFloat(g.gelu_input[at]));
    if (g.pre_activation != nullptr) g.pre_activation[at] = Convert<C>(z);
    g.c[at] = Convert<C>(g.gelu ? Gelu(z) : z);
  }
}

// y = gelu(z), or y = dy gelu'(z) if there is a dy; y may be z or dy. One pass over memory.
// Grid: one thread per pack. No shared memory; every element by one thread.
template <bool kDerivative, class C>
__global__ void __launch_bounds__(kElementwiseThreads)
    GeluOfProductKernel(const C* z, const C* dy, int64_t n, C* y, bool aligned) {
  constexpr int N = kPackSize<C>;
  const int64_t at = GlobalThread() * N;
  if (at >= n) return;
  const bool whole = aligned && at + N <= n;
  const int count = CountWithin<N>(at, n);
  const auto load = [&](const C* p) {
    return whole ? Load(p + at) : LoadSome(p + at, count, Convert<C>(0.0f));
  };
  Packed<C> x = load(z);
  if constexpr (kDerivative) {
    const Packed<C> g = load(dy);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = Convert<C>(ToFloat(g[i]) * GeluDerivative(ToFloat(x[i])));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = Convert<C>(Gelu(ToFloat(x[i])));
  }
  if (whole) {
    Store(y + at, x);
  } else {
    StoreSome(y + at, x, count);
  }
}

template <bool kDerivative>
void GeluOfProduct(Stream stream, DType dtype, const void* z, const void* dy, int64_t n, void* y) {
  DispatchFloat("matmul", dtype, [&]<class C>(TypeTag<C>) {
    const C *from = static_cast<const C*>(z), *grad = static_cast<const C*>(dy);
    C* to = static_cast<C*>(y);
    LaunchThreads(kDerivative ? "gelu_derivative" : "gelu", GeluOfProductKernel<kDerivative, C>,
                  DivideUp(n, kPackSize<C>), stream, from, grad, n, to,
                  AllAligned16(from, grad, to));
  });
}

void PlainGemm(Stream stream, const GemmArgs& args) {
  DispatchFloat("matmul", args.dtype, [&]<class T>(TypeTag<T>) {
    DispatchFloat("matmul", args.c_dtype, [&]<class C>(TypeTag<C>) {
      const int64_t tiles = args.batch * DivideUp(args.m, kTile) * DivideUp(args.n, kTile);
      Launch("matmul", GemmKernel<T, C>, Blocks(tiles, 1), kThreads, 0, stream,
             GemmOperands<T, C>{args.transpose_a, args.transpose_b, args.m, args.n, args.k,
                                static_cast<const T*>(args.a), static_cast<const T*>(args.b),
                                static_cast<C*>(args.c), args.accumulate,
                                static_cast<const C*>(args.bias), args.gelu,
                                static_cast<C*>(args.pre_activation),
                                static_cast<const C*>(args.gelu_input)});
    });
  });
}

// ---- What cuBLASLt does. ----

// Row-major matrices are the transposes of column-major ones, and C^T = op(B)^T op(A)^T.
BlasLtMatmul ColumnMajor(const GemmArgs& args) {
  BlasLtMatmul p;
  p.transpose_a = args.transpose_b;
  p.transpose_b = args.transpose_a;
  p.m = args.n;
  p.n = args.m;
  p.k = args.k;
  p.dtype = args.dtype;
  p.d_dtype = args.c_dtype;
  p.a = args.b;
  p.b = args.a;
  p.d = args.c;
  p.lda = args.transpose_b ? args.k : args.n;
  p.ldb = args.transpose_a ? args.m : args.k;
  p.ldd = args.n;
  p.batch = args.batch;
  p.stride_a = args.k * args.n;
  p.stride_b = args.m * args.k;
  p.stride_d = args.m * args.n;
  p.accumulate = args.accumulate;
  p.full_f32 = args.full_f32;
  p.bias = args.bias;
  p.aux = args.gelu_input != nullptr ? const_cast<void*>(args.gelu_input) : args.pre_activation;
  using Epilogue = BlasLtMatmul::Epilogue;
  if (args.gelu_input != nullptr) {
    p.epilogue = Epilogue::kDGelu;
  } else if (args.gelu) {
    p.epilogue = args.pre_activation != nullptr
                     ? (args.bias != nullptr ? Epilogue::kGeluAuxBias : Epilogue::kGeluAux)
                     : (args.bias != nullptr ? Epilogue::kGeluBias : Epilogue::kGelu);
  } else if (args.bias != nullptr) {
    p.epilogue = Epilogue::kBias;
  }
  return p;
}

bool TryBlasLt(Stream stream, const GemmArgs& args) {
  const bool types = args.dtype == args.c_dtype || args.c_dtype == DType::kF32;
  return types && args.k > 0 && RunBlasLt(stream, ColumnMajor(args));
}

// The product, and then gelu or its derivative in a separate pass.
bool TryGeluApart(Stream stream, const GemmArgs& args) {
  GemmArgs product = args;
  product.gelu = false;
  product.pre_activation = nullptr;
  product.gelu_input = nullptr;
  if (args.pre_activation != nullptr) product.c = args.pre_activation;
  if (!TryBlasLt(stream, product)) return false;
  const int64_t n = args.batch * args.m * args.n;
  if (args.gelu_input != nullptr) {
    MultiplyByGeluDerivative(stream, args.c_dtype, args.gelu_input, args.c, n, args.c);
  } else {
    GeluOfProduct<false>(stream, args.c_dtype, product.c, nullptr, n, args.c);
  }
  return true;
}

}  // namespace

void MultiplyByGeluDerivative(Stream stream, DType dtype, const void* z, const void* dy, int64_t n,
                              void* out) {
  if (n > 0) GeluOfProduct<true>(stream, dtype, z, dy, n, out);
}

namespace {

// Why cuBLASLt cannot fuse gelu, or its derivative, into a 16-bit product; null: it can.
const char* WhyGeluApart(const GemmArgs& args) {
  if (args.n % 8 != 0)
    return "gelu is a pass of its own, since the number of columns is not a multiple of 8";
  if (!AllAligned16(args.pre_activation, args.gelu_input)) {
    return "gelu is a pass of its own, since an address is not a multiple of 16 bytes";
  }
  return nullptr;
}

// On earlier GPUs cuBLASLt's products with gelu took longer than a pass of its own (llm.c's
// finding).
bool JoinsGelu(Device device) {
  int major = 0;
  LS_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  return major >= 9;
}

// `why_slow` is a literal.
void NoteSlowProduct(const GemmArgs& args, const char* kernel, const char* why_slow) {
  const int64_t problem[] = {args.batch,
                             args.m,
                             args.n,
                             args.k,
                             args.transpose_a,
                             args.transpose_b,
                             static_cast<int64_t>(args.dtype),
                             static_cast<int64_t>(args.c_dtype),
                             args.gelu,
                             args.gelu_input != nullptr,
                             static_cast<int64_t>(reinterpret_cast<uintptr_t>(why_slow))};
  if (!IsNewProblem("slow matmul", problem)) return;
  NoteKernelChoice("matmul", problem,
                   {.problem = StrCat(args.dtype, "[", args.m, ", ", args.k, "] x [", args.k, ", ",
                                      args.n, "] -> ", args.c_dtype),
                    .kernel = kernel,
                    .why_slow = why_slow});
}

}  // namespace

void Gemm(Stream stream, const GemmArgs& args) {
  if (args.batch * args.m * args.n == 0) return;
  const bool gelu = args.gelu || args.gelu_input != nullptr;
  const bool joins = gelu && SizeOf(args.c_dtype) == 2 && JoinsGelu(stream.device);
  const char* why_apart = joins ? WhyGeluApart(args) : nullptr;
  if ((!gelu || (joins && why_apart == nullptr)) && TryBlasLt(stream, args)) return;
  if (gelu && TryGeluApart(stream, args)) {
    if (joins) {
      NoteSlowProduct(
          args, "cuBLASLt and gelu",
          why_apart != nullptr ? why_apart : "cuBLASLt has no algorithm that joins gelu to it");
    }
    return;
  }
  PlainGemm(stream, args);
  if (args.k == 0) return;
  NoteSlowProduct(args, "plain",
                  args.dtype != args.c_dtype && args.c_dtype != DType::kF32
                      ? "cuBLASLt does not support products of these dtypes"
                      : "cuBLASLt has no algorithm for its sizes and alignment");
}

namespace {

void MatMulCuda(Stream stream, const MatMulArgs& args) {
  auto g = ProductOf<GemmArgs>(args.a, args.transpose_a, args.b, args.transpose_b, args.c);
  g.accumulate = args.accumulate;
  Gemm(stream, g);
}

LS_REGISTER(matmul_slot, DeviceType::kCuda, MatMulCuda);

}  // namespace
}  // namespace lockstep::cuda
