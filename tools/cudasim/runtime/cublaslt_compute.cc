// The matrix product itself, on Eigen: tiles of the result, each summed by one thread in Eigen's
// order, so that the bits do not depend on how many threads there are.
#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include "cublaslt.h"
#include "cudasim/access.h"
#include "float_types.h"
#include "state.h"

namespace cudasim::runtime {
namespace {

template <typename Acc>
using Matrix = Eigen::Matrix<Acc, Eigen::Dynamic, Eigen::Dynamic>;

template <typename Acc>
void Load(int32_t type, const void* from, int64_t count, Acc* to) {
  const auto convert = [&](auto* elements, auto to_float) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Acc>(to_float(elements[i]));
  };
  switch (type) {
    case CUDA_R_64F:
      convert(static_cast<const double*>(from), [](double x) { return x; });
      break;
    case CUDA_R_32F:
      convert(static_cast<const float*>(from), [](float x) { return x; });
      break;
    case CUDA_R_16BF:
      convert(static_cast<const uint16_t*>(from), FromBf16);
      break;
    case CUDA_R_16F:
      convert(static_cast<const uint16_t*>(from), FromHalf);
      break;
    case CUDA_R_8F_E4M3:
      convert(static_cast<const uint8_t*>(from), FromE4m3);
      break;
    case CUDA_R_8F_E5M2:
      convert(static_cast<const uint8_t*>(from), FromE5m2);
      break;
    default:
      break;
  }
}

template <typename Acc>
void Store(int32_t type, const Acc* from, int64_t count, void* to) {
  for (int64_t i = 0; i < count; ++i) {
    switch (type) {
      case CUDA_R_64F:
        static_cast<double*>(to)[i] = from[i];
        break;
      case CUDA_R_32F:
        static_cast<float*>(to)[i] = static_cast<float>(from[i]);
        break;
      case CUDA_R_16BF:
        static_cast<uint16_t*>(to)[i] = ToBf16(static_cast<float>(from[i]));
        break;
      case CUDA_R_16F:
        static_cast<uint16_t*>(to)[i] = ToHalf(static_cast<float>(from[i]));
        break;
      default:
        break;
    }
  }
}

template <typename T>
T* Offset(T* base, int64_t elements, int32_t type) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(base) + elements * static_cast<int64_t>(SizeOf(type));
}

// op(X), in the type of the computation.
template <typename Acc>
Matrix<Acc> LoadMatrix(const Layout& layout, const void* base, int32_t batch, bool transpose,
                       bool tf32) {
  const auto rows = static_cast<int64_t>(layout.rows);
  const auto cols = static_cast<int64_t>(layout.cols);
  Matrix<Acc> matrix(rows, cols);
  for (int64_t j = 0; j < cols; ++j) {
    Load(layout.type, Offset(base, batch * layout.batch_stride + j * layout.ld, layout.type), rows,
         matrix.col(j).data());
  }
  if (tf32) {
    for (int64_t i = 0; i < matrix.size(); ++i) {
      matrix.data()[i] = static_cast<Acc>(ToTf32(static_cast<float>(matrix.data()[i])));
    }
  }
  if (!transpose) return matrix;
  return matrix.transpose();
}

constexpr int64_t kTile = 256;
constexpr int64_t kWorthThreads = int64_t{1} << 23;  // Multiplications.

// out = a b, by tiles.
template <typename Acc>
void Product(const Matrix<Acc>& a, const Matrix<Acc>& b, int64_t k_begin, int64_t k_count,
             Matrix<Acc>* out) {
  const int64_t tiles_down = (out->rows() + kTile - 1) / kTile;
  const int64_t tiles_across = (out->cols() + kTile - 1) / kTile;
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t tile = next++; tile < tiles_down * tiles_across; tile = next++) {
      const int64_t i = tile % tiles_down * kTile;
      const int64_t j = tile / tiles_down * kTile;
      const int64_t rows = std::min(kTile, out->rows() - i);
      const int64_t cols = std::min(kTile, out->cols() - j);
      out->block(i, j, rows, cols).noalias() =
          a.block(i, k_begin, rows, k_count) * b.block(k_begin, j, k_count, cols);
    }
  };
  std::vector<std::thread> helpers;
  if (out->rows() * out->cols() * k_count >= kWorthThreads) {
    const int64_t threads =
        std::min<int64_t>(std::thread::hardware_concurrency(), tiles_down * tiles_across);
    for (int64_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

constexpr double kGeluScale = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

template <typename Acc>
Acc Gelu(Acc x) {
  const Acc inner = static_cast<Acc>(kGeluScale) * (x + static_cast<Acc>(kGeluCubic) * x * x * x);
  return static_cast<Acc>(0.5) * x * (1 + std::tanh(inner));
}

template <typename Acc>
Acc GeluGradient(Acc x) {
  const Acc inner = static_cast<Acc>(kGeluScale) * (x + static_cast<Acc>(kGeluCubic) * x * x * x);
  const Acc tanh = std::tanh(inner);
  const Acc slope = static_cast<Acc>(kGeluScale) * (1 + static_cast<Acc>(3 * kGeluCubic) * x * x);
  return static_cast<Acc>(0.5) * (1 + tanh) + static_cast<Acc>(0.5) * x * (1 - tanh * tanh) * slope;
}

template <typename Acc>
Acc ReadScale(double by_value, const void* on_device) {
  return on_device == nullptr ? static_cast<Acc>(by_value)
                              : static_cast<Acc>(*static_cast<const Acc*>(on_device));
}

// The epilogue, one column at a time.
template <typename Acc>
class Epilogue {
 public:
  Epilogue(const Problem& problem, int32_t batch)
      : operation_(problem.operation),
        m_(problem.m),
        batch_(batch),
        d_type_(problem.d.type),
        bias_type_(operation_.bias_type < 0 ? d_type_ : operation_.bias_type),
        column_(m_),
        sums_(m_, Acc(0)) {
    if (Has(CUBLASLT_EPILOGUE_BIAS)) {
      bias_.resize(m_);
      Load(bias_type_, Offset(operation_.bias, batch * operation_.bias_stride, bias_type_), m_,
           bias_.data());
    }
  }

  void Apply(int64_t j, Acc* values) {
    for (size_t i = 0; i < bias_.size(); ++i) values[i] += bias_[i];
    void* const aux =
        Offset(operation_.aux, batch_ * operation_.aux_stride + j * operation_.aux_ld, d_type_);
    if (Has(CUBLASLT_EPILOGUE_RELU)) {
      for (int64_t i = 0; i < m_; ++i) values[i] = values[i] > 0 ? values[i] : 0;
    }
    if (Has(CUBLASLT_EPILOGUE_GELU)) {
      if (Has(kAux)) Store(d_type_, values, m_, aux);
      for (int64_t i = 0; i < m_; ++i) values[i] = Gelu(values[i]);
    }
    if (Has(kGeluBackward)) {
      Load(d_type_, aux, m_, column_.data());
      for (int64_t i = 0; i < m_; ++i) values[i] *= GeluGradient(column_[i]);
    }
    if (Has(kBiasGradient)) {
      for (int64_t i = 0; i < m_; ++i) sums_[i] += values[i];
    }
  }

  // Bias gradients, after the last column.
  void Finish(const Matrix<Acc>& a, const Matrix<Acc>& b) {
    if (Has(kBiasGradient)) Store(bias_type_, sums_.data(), m_, operation_.bias);
    if (Has(CUBLASLT_EPILOGUE_BGRADA)) {
      for (int64_t k = 0; k < a.cols(); ++k) {
        for (int64_t i = 0; i < m_; ++i) sums_[i] += a(i, k);
      }
      Store(bias_type_, sums_.data(), m_, operation_.bias);
    }
    if (Has(CUBLASLT_EPILOGUE_BGRADB)) {
      std::vector<Acc> sums(b.cols(), Acc(0));
      for (int64_t j = 0; j < b.cols(); ++j) {
        for (int64_t k = 0; k < b.rows(); ++k) sums[j] += b(k, j);
      }
      Store(bias_type_, sums.data(), b.cols(), operation_.bias);
    }
  }

 private:
  static constexpr uint32_t kAux = 128;
  static constexpr uint32_t kGeluBackward = 64;
  static constexpr uint32_t kBiasGradient = 16;

  bool Has(uint32_t part) const { return (operation_.epilogue & part) != 0; }

  const Operation& operation_;
  int64_t m_;
  int32_t batch_;
  int32_t d_type_;
  int32_t bias_type_;
  std::vector<Acc> bias_;
  std::vector<Acc> column_;
  std::vector<Acc> sums_;
};

template <typename Acc>
Matrix<Acc> Sum(const Problem& problem, const Matrix<Acc>& a, const Matrix<Acc>& b) {
  Matrix<Acc> sum(problem.m, problem.n);
  const int64_t part = (problem.k + problem.split_k - 1) / problem.split_k;
  Product(a, b, 0, std::min(part, problem.k), &sum);
  Matrix<Acc> next(problem.split_k > 1 ? problem.m : 0, problem.split_k > 1 ? problem.n : 0);
  for (int64_t begin = part; begin < problem.k; begin += part) {
    Product(a, b, begin, std::min(part, problem.k - begin), &next);
    sum += next;
  }
  return sum;
}

template <typename Acc>
void MultiplyAs(const Problem& problem, const Operands& operands) {
  const Operation& operation = problem.operation;
  Acc alpha = ReadScale<Acc>(operands.alpha, operands.alpha_on_device);
  const Acc beta = ReadScale<Acc>(operands.beta, operands.beta_on_device);
  for (int i = 0; i < 2; ++i) {
    if (operation.scales[i] != nullptr) alpha *= static_cast<Acc>(*operation.scales[i]);
  }
  const bool tf32 = operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  std::vector<Acc> c(problem.m);
  for (int32_t batch = 0; batch < problem.d.batch; ++batch) {
    const auto a =
        LoadMatrix<Acc>(problem.a, operands.a, batch, operation.transpose[0] != CUBLAS_OP_N, tf32);
    const auto b =
        LoadMatrix<Acc>(problem.b, operands.b, batch, operation.transpose[1] != CUBLAS_OP_N, tf32);
    Matrix<Acc> sum = Sum(problem, a, b);
    Epilogue<Acc> epilogue(problem, batch);
    for (int64_t j = 0; j < problem.n; ++j) {
      Acc* const values = sum.col(j).data();
      for (int64_t i = 0; i < problem.m; ++i) values[i] *= alpha;
      // C is not read if beta is 0, since it may hold NaN.
      if (beta != Acc(0)) {
        Load(problem.c.type,
             Offset(operands.c, batch * problem.c.batch_stride + j * problem.c.ld, problem.c.type),
             problem.m, c.data());
        for (int64_t i = 0; i < problem.m; ++i) values[i] += beta * c[i];
      }
      epilogue.Apply(j, values);
      Store(problem.d.type, values, problem.m,
            Offset(operands.d, batch * problem.d.batch_stride + j * problem.d.ld, problem.d.type));
    }
    epilogue.Finish(a, b);
  }
}

}  // namespace

void Multiply(const Problem& problem, const Operands& operands) {
  const DeviceAccess access(DeviceAccess::kAllDevices);
  Approximated() = true;
  if (problem.operation.scale_type == CUDA_R_64F) {
    MultiplyAs<double>(problem, operands);
  } else {
    MultiplyAs<float>(problem, operands);
  }
}

}  // namespace cudasim::runtime
