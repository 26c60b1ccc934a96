#include <algorithm>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/update.cuh"
#include "kernels/matmul/gemm_cuda.h"
#include "kernels/muon/muon_math.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kNormChunk = 16384;  // elements whose squares one block adds up

// sums[chunk] = the sum of the squares of kNormChunk elements, in f64.
// Grid: a block to a chunk. Shared memory: one f64 per warp. Deterministic.
__global__ void __launch_bounds__(kThreads)
    MuonSquareSumsKernel(const float* x, int64_t n, double* sums) {
  __shared__ double scratch[kThreads / kWarpSize];
  const int64_t begin = blockIdx.x * kNormChunk;
  const int64_t end = Min(begin + kNormChunk, n);
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const double v = static_cast<double>(x[i]);
    sum += v * v;
  }
  sum = BlockSum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// factor = 1 / max(|x|, eps). Grid: one block. Shared memory: one f64 per warp. Deterministic.
__global__ void __launch_bounds__(kThreads)
    MuonFactorKernel(const double* sums, int64_t chunks, double eps, float* factor) {
  __shared__ double scratch[kThreads / kWarpSize];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < chunks; i += kThreads) sum += sums[i];
  sum = BlockSum<kThreads>(sum, scratch);
  const double norm = sqrt(sum);
  if (threadIdx.x == 0) *factor = static_cast<float>(1 / (norm > eps ? norm : eps));
}

// y = x *factor; y may be x. Grid: threads to elements.
template <class T>
__global__ void __launch_bounds__(kThreads)
    MuonScaleKernel(const float* x, int64_t n, const float* factor, T* y) {
  const int64_t i = GlobalThread();
  if (i < n) y[i] = Convert<T>(x[i] * *factor);
}

// y = a x + b y. Grid: threads to elements.
template <class T>
__global__ void __launch_bounds__(kThreads)
    MuonCombineKernel(int64_t n, float a, const T* x, float b, T* y) {
  const int64_t i = GlobalThread();
  if (i < n) y[i] = Convert<T>(fmaf(a, ToFloat(x[i]), b * ToFloat(y[i])));
}

// One matrix [rows, columns] on its way, with products of T.
template <class T>
class Orthogonalizer {
 public:
  Orthogonalizer(Stream stream, const MuonMatrix& matrix)
      : stream_(stream),
        rows_(matrix.tensors->value.dim(0)),
        columns_(matrix.tensors->value.dim(1)),
        n_(rows_ * columns_),
        side_(std::min(rows_, columns_)),
        matrix_(matrix) {}

  // The direction of the update, [1, rows columns] of T.
  Tensor Run(const MuonHyper& hyper, const StepValues* values) {
    const Tensor first = matrix_.matrices.Slice(0, 0, 1);
    const UpdateTensors momentum = MomentumUpdate(*matrix_.tensors, first);
    UpdateAll<MuonMomentumRule>(stream_, std::span(&momentum, 1), hyper, values);
    T* x = Data<T>(matrix_.products());
    T* spare = x + n_;
    Normalize(hyper.eps, Data<float>(first), x);
    for (int step = 0; step < hyper.steps; ++step) {
      Iterate(hyper, x, spare);
      std::swap(x, spare);
    }
    return matrix_.products().Slice(0, hyper.steps % 2, hyper.steps % 2 + 1);
  }

 private:
  unsigned Grid(int64_t n) const { return Blocks(n, kThreads); }

  void Normalize(double eps, const float* from, T* x) {
    const int64_t chunks = DivideUp(n_, kNormChunk);
    const Device device = matrix_.matrices.device();
    const Tensor sums = Tensor::Empty({chunks}, DType::kF64, device);
    const Tensor factor = Tensor::Empty({1}, DType::kF32, device);
    Launch("muon_normalize", MuonSquareSumsKernel, Blocks(n_, kNormChunk), kThreads, 0, stream_,
           from, n_, Data<double>(sums));
    Launch("muon_normalize", MuonFactorKernel, 1, kThreads, 0, stream_, Data<double>(sums), chunks,
           eps, Data<float>(factor));
    Launch("muon_normalize", MuonScaleKernel<T>, Grid(n_), kThreads, 0, stream_, from, n_,
           Data<float>(factor), x);
  }

  // y = a x + b y
  void Combine(int64_t n, double a, const T* x, double b, T* y) {
    Launch("muon_combine", MuonCombineKernel<T>, Grid(n), kThreads, 0, stream_, n,
           static_cast<float>(a), x, static_cast<float>(b), y);
  }

  // out = op(x) op(y), [m, n] with sums over k
  void Multiply(const T* x, bool transpose_x, const T* y, bool transpose_y, int64_t m, int64_t n,
                int64_t k, T* out) {
    const DType dtype = matrix_.products().dtype();
    Gemm(stream_, {.transpose_a = transpose_x,
                   .transpose_b = transpose_y,
                   .m = m,
                   .n = n,
                   .k = k,
                   .dtype = dtype,
                   .a = x,
                   .b = y,
                   .c_dtype = dtype,
                   .c = out});
  }

  // One step of Newton and Schulz from x to y.
  void Iterate(const MuonHyper& h, const T* x, T* y) {
    T *gram = Data<T>(matrix_.squares), *polynomial = gram + side_ * side_;
    // X X^T for a wide matrix, X^T X for a tall one.
    const bool wide = rows_ <= columns_;
    Multiply(x, !wide, x, wide, side_, side_, wide ? columns_ : rows_, gram);
    Multiply(gram, false, gram, false, side_, side_, side_, polynomial);
    Combine(side_ * side_, h.b, gram, h.c, polynomial);
    if (wide) {
      Multiply(polynomial, false, x, false, rows_, columns_, side_, y);
    } else {
      Multiply(x, false, polynomial, false, rows_, columns_, side_, y);
    }
    Combine(n_, h.a, x, 1, y);
  }

  Stream stream_;
  int64_t rows_, columns_, n_, side_;
  const MuonMatrix& matrix_;
};

void MuonUpdateCuda(Stream stream, std::span<const MuonMatrix> all, const MuonHyper& hyper,
                    const StepValues* values) {
  for (const MuonMatrix& matrix : all) {
    UpdateTensors update = *matrix.tensors;
    update.grad = hyper.dtype == DType::kBF16
                      ? Orthogonalizer<bf16>(stream, matrix).Run(hyper, values)
                      : Orthogonalizer<float>(stream, matrix).Run(hyper, values);
    const double factor = MuonFactor(hyper.scale, update.value.dim(0), update.value.dim(1));
    UpdateAll<MuonRule>(stream, std::span<const UpdateTensors>(&update, 1), {factor, hyper.decay},
                        values);
  }
}

LS_REGISTER(muon_update, DeviceType::kCuda, MuonUpdateCuda);

}  // namespace
}  // namespace lockstep::cuda
