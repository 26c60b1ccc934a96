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
  SHARED_ARRAY(double, scratch, kThreads / kWarpSize);
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
  SHARED_ARRAY(double, scratch, kThreads / kWarpSize);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < chunks; i += kThreads) sum += sums[i];
  sum = BlockSum<kThreads>(sum, scratch);
  const double norm = sqrt(sum);
  if (threadIdx.x == 0) *factor = static_cast<float>(1 / (norm > eps ? norm : eps));
}

// x *= *factor. Grid: threads to elements.
__global__ void __launch_bounds__(kThreads)
    MuonScaleKernel(float* x, int64_t n, const float* factor) {
  const int64_t i = GlobalThread();
  if (i < n) x[i] *= *factor;
}

// y = a x + b y. Grid: threads to elements.
__global__ void __launch_bounds__(kThreads)
    MuonCombineKernel(int64_t n, float a, const float* x, float b, float* y) {
  const int64_t i = GlobalThread();
  if (i < n) y[i] = fmaf(a, x[i], b * y[i]);
}

// One matrix [rows, columns] on its way.
class Orthogonalizer {
 public:
  Orthogonalizer(Stream stream, const UpdateTensors& t, const Tensor& matrices,
                 const Tensor& squares)
      : stream_(stream),
        rows_(t.value.dim(0)),
        columns_(t.value.dim(1)),
        n_(rows_ * columns_),
        side_(std::min(rows_, columns_)),
        memory_(matrices),
        squares_(squares) {}

  // The direction of the update, [rows, columns] of f32.
  Tensor Run(const UpdateTensors& t, const MuonHyper& hyper, const StepValues* values) {
    float* x = Data<float>(memory_);
    float* spare = x + n_;
    const UpdateTensors momentum = MomentumUpdate(t, memory_.Slice(0, 0, 1));
    UpdateAll<MuonMomentumRule>(stream_, std::span(&momentum, 1), hyper, values);
    Normalize(hyper.eps, x);
    for (int step = 0; step < hyper.steps; ++step) {
      Iterate(hyper, x, spare);
      std::swap(x, spare);
    }
    const int64_t row = x == Data<float>(memory_) ? 0 : 1;
    return memory_.Slice(0, row, row + 1).View({rows_, columns_});
  }

 private:
  unsigned Grid(int64_t n) const { return Blocks(n, kThreads); }

  void Normalize(double eps, float* x) {
    const int64_t chunks = DivideUp(n_, kNormChunk);
    const Tensor sums = Tensor::Empty({chunks}, DType::kF64, memory_.device());
    const Tensor factor = Tensor::Empty({1}, DType::kF32, memory_.device());
    Launch("muon_normalize", MuonSquareSumsKernel, Blocks(n_, kNormChunk), kThreads, 0, stream_, x,
           n_, Data<double>(sums));
    Launch("muon_normalize", MuonFactorKernel, 1, kThreads, 0, stream_, Data<double>(sums), chunks,
           eps, Data<float>(factor));
    Launch("muon_normalize", MuonScaleKernel, Grid(n_), kThreads, 0, stream_, x, n_,
           Data<float>(factor));
  }

  // y = a x + b y
  void Combine(int64_t n, double a, const float* x, double b, float* y) {
    Launch("muon_combine", MuonCombineKernel, Grid(n), kThreads, 0, stream_, n,
           static_cast<float>(a), x, static_cast<float>(b), y);
  }

  // out = op(x) op(y), [m, n] with sums over k
  void Multiply(const float* x, bool transpose_x, const float* y, bool transpose_y, int64_t m,
                int64_t n, int64_t k, float* out) {
    Gemm(stream_, {.transpose_a = transpose_x,
                   .transpose_b = transpose_y,
                   .m = m,
                   .n = n,
                   .k = k,
                   .a = x,
                   .b = y,
                   .c = out});
  }

  // One step of Newton and Schulz from x to y.
  void Iterate(const MuonHyper& h, const float* x, float* y) {
    float *gram = Data<float>(squares_), *polynomial = gram + side_ * side_;
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
  Tensor memory_, squares_;
};

void MuonUpdateCuda(Stream stream, const UpdateTensors& t, const Tensor& matrices,
                    const Tensor& squares, const MuonHyper& hyper, const StepValues* values) {
  UpdateTensors update = t;
  update.grad = Orthogonalizer(stream, t, matrices, squares).Run(t, hyper, values);
  UpdateAll<MuonRule>(stream, std::span<const UpdateTensors>(&update, 1),
                      {MuonFactor(hyper.scale, t.value.dim(0), t.value.dim(1))}, values);
}

LS_REGISTER(muon_update, DeviceType::kCuda, MuonUpdateCuda);

}  // namespace
}  // namespace lockstep::cuda
