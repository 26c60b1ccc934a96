// The stand-in for cuBLASLt against a plain product, and what it refuses.
#include "cublasLt.h"

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <tuple>

#include "tests/cudasim/support.h"
#include "tools/cudasim/runtime/float_types.h"

#define BLAS_OK(call) ASSERT_EQ(call, CUBLAS_STATUS_SUCCESS)

namespace cudasim_test {
namespace {

namespace rt = cudasim::runtime;

constexpr double kGeluScale = 0.7978845608028654;

double Gelu(double x) { return 0.5 * x * (1 + std::tanh(kGeluScale * (x + 0.044715 * x * x * x))); }

double GeluGradient(double x) {
  const double h = 1e-5;
  return (Gelu(x + h) - Gelu(x - h)) / (2 * h);
}

size_t SizeOf(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

std::vector<char> Encode(cudaDataType_t type, const std::vector<double>& values) {
  std::vector<char> bytes(values.size() * SizeOf(type));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto f32 = static_cast<float>(values[i]);
    const uint16_t f16 = type == CUDA_R_16F ? rt::ToHalf(f32) : rt::ToBf16(f32);
    char* const to = bytes.data() + i * SizeOf(type);
    if (type == CUDA_R_64F) {
      std::memcpy(to, &values[i], 8);
    } else if (type == CUDA_R_32F) {
      std::memcpy(to, &f32, 4);
    } else {
      std::memcpy(to, &f16, 2);
    }
  }
  return bytes;
}

std::vector<double> Decode(cudaDataType_t type, const std::vector<char>& bytes) {
  std::vector<double> values(bytes.size() / SizeOf(type));
  for (size_t i = 0; i < values.size(); ++i) {
    const char* const from = bytes.data() + i * SizeOf(type);
    uint16_t f16 = 0;
    float f32 = 0;
    if (type == CUDA_R_64F) {
      std::memcpy(&values[i], from, 8);
    } else if (type == CUDA_R_32F) {
      std::memcpy(&f32, from, 4);
      values[i] = f32;
    } else {
      std::memcpy(&f16, from, 2);
      values[i] = type == CUDA_R_16F ? rt::FromHalf(f16) : rt::FromBf16(f16);
    }
  }
  return values;
}

// A column-major matrix on the device, with its values (after rounding to the type) on the host.
struct Matrix {
  Matrix(cudaDataType_t type_, int64_t rows_, int64_t cols_, int64_t ld_, unsigned seed)
      : type(type_), rows(rows_), cols(cols_), ld(ld_) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    std::vector<double> all(ld * cols, NAN);
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = 0; i < rows; ++i) all[j * ld + i] = uniform(random);
    }
    values = Decode(type, Encode(type, all));
    data = Upload(Encode(type, all));
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, type, rows, cols, ld), CUBLAS_STATUS_SUCCESS);
  }
  ~Matrix() {
    EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaFree(data), cudaSuccess);
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  double at(int64_t i, int64_t j) const { return values[j * ld + i]; }
  std::vector<double> Read() const {
    return Decode(type, Download(data, ld * cols * SizeOf(type)));
  }

  cudaDataType_t type;
  int64_t rows, cols, ld;
  std::vector<double> values;
  char* data = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
};

class CublasLtTest : public testing::Test {
 protected:
  void SetUp() override { BLAS_OK(cublasLtCreate(&handle_)); }
  void TearDown() override {
    BLAS_OK(cublasLtDestroy(handle_));
    if (operation_ != nullptr) {
      BLAS_OK(cublasLtMatmulDescDestroy(operation_));
    }
  }
  void MakeOperation(cublasComputeType_t compute, cudaDataType_t scale) {
    if (operation_ != nullptr) {
      BLAS_OK(cublasLtMatmulDescDestroy(operation_));
    }
    BLAS_OK(cublasLtMatmulDescCreate(&operation_, compute, scale));
  }
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    BLAS_OK(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)));
  }
  cublasStatus_t Multiply(const Matrix& a, const Matrix& b, const Matrix& c, const Matrix& d,
                          cudaStream_t stream = nullptr) {
    return cublasLtMatmul(handle_, operation_, &alpha_, a.data, a.layout, b.data, b.layout, &beta_,
                          c.data, c.layout, d.data, d.layout, nullptr, nullptr, 0, stream);
  }
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  float alpha_ = 1;
  float beta_ = 0;
};

// op(A) op(B) in f64.
double Dot(const Matrix& a, bool ta, const Matrix& b, bool tb, int64_t i, int64_t j) {
  const int64_t k = ta ? a.rows : a.cols;
  double sum = 0;
  for (int64_t p = 0; p < k; ++p) {
    sum += (ta ? a.at(p, i) : a.at(i, p)) * (tb ? b.at(j, p) : b.at(p, j));
  }
  return sum;
}

double Tolerance(cudaDataType_t type) {
  return type == CUDA_R_64F ? 1e-13 : type == CUDA_R_32F ? 1e-5 : type == CUDA_R_16F ? 1e-3 : 8e-3;
}

TEST_F(CublasLtTest, MultipliesEveryTypeAndTransposition) {
  for (const auto& [in, out] : {std::pair{CUDA_R_32F, CUDA_R_32F},
                                {CUDA_R_16BF, CUDA_R_16BF},
                                {CUDA_R_16BF, CUDA_R_32F},
                                {CUDA_R_16F, CUDA_R_16F}}) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool ta = (transposed & 1) != 0;
      const bool tb = (transposed & 2) != 0;
      const int64_t m = 37;
      const int64_t n = 300;  // More than a tile.
      const int64_t k = 65;
      const Matrix a(in, ta ? k : m, ta ? m : k, 70, 1);
      const Matrix b(in, tb ? n : k, tb ? k : n, 304, 2);
      const Matrix c(out, m, n, 40, 3);
      const Matrix d(out, m, n, 48, 4);
      MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
      Set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{ta ? CUBLAS_OP_T : CUBLAS_OP_N});
      Set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{tb ? CUBLAS_OP_T : CUBLAS_OP_N});
      alpha_ = 0.5f;
      beta_ = 2;
      BLAS_OK(Multiply(a, b, c, d));
      const auto result = d.Read();
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) {
          const double expected = 0.5 * Dot(a, ta, b, tb, i, j) + 2 * c.at(i, j);
          ASSERT_NEAR(result[j * 48 + i], expected, Tolerance(out) * (1 + std::fabs(expected)));
        }
        ASSERT_TRUE(std::isnan(result[j * 48 + m]));  // Between the columns nothing is written.
      }
    }
  }
}

TEST_F(CublasLtTest, MultipliesInF64AndTf32) {
  {
    const Matrix a(CUDA_R_64F, 5, 7, 5, 1);
    const Matrix b(CUDA_R_64F, 7, 3, 7, 2);
    const Matrix d(CUDA_R_64F, 5, 3, 5, 3);
    MakeOperation(CUBLAS_COMPUTE_64F, CUDA_R_64F);
    const double alpha = 1;
    const double beta = 0;
    BLAS_OK(cublasLtMatmul(handle_, operation_, &alpha, a.data, a.layout, b.data, b.layout, &beta,
                           nullptr, d.layout, d.data, d.layout, nullptr, nullptr, 0, nullptr));
    EXPECT_NEAR(d.Read()[6], Dot(a, false, b, false, 1, 1), 1e-14);
  }
  const Matrix a(CUDA_R_32F, 8, 64, 8, 1);
  const Matrix b(CUDA_R_32F, 64, 8, 64, 2);
  const Matrix d(CUDA_R_32F, 8, 8, 8, 3);
  MakeOperation(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F);
  BLAS_OK(Multiply(a, b, d, d));
  const double error = std::fabs(d.Read()[0] - Dot(a, false, b, false, 0, 0));
  EXPECT_LT(error, 5e-3);
  EXPECT_GT(error, 1e-6);  // It is TF32, not f32.
}

TEST_F(CublasLtTest, Epilogues) {
  for (const auto type : {CUDA_R_32F, CUDA_R_16BF}) {
    const int64_t m = 24;
    const int64_t n = 19;
    const int64_t k = 33;
    const Matrix a(type, m, k, m, 1);
    const Matrix b(type, k, n, 40, 2);
    const Matrix bias(type, m, 1, m, 3);
    const auto run = [&](cublasLtEpilogue_t epilogue, const Matrix& vector, const Matrix& aux,
                         const Matrix& d) {
      MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{epilogue});
      Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(vector.data));
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(aux.data));
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{aux.ld});
      EXPECT_EQ(Multiply(a, b, d, d), CUBLAS_STATUS_SUCCESS);
      return d.Read();
    };
    const auto expect = [&](const std::vector<double>& result, auto expected) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) {
          const double value = expected(i, j);
          ASSERT_NEAR(result[j * m + i], value, Tolerance(type) * (1 + std::fabs(value)));
        }
      }
    };
    const auto dot = [&](int64_t i, int64_t j) { return Dot(a, false, b, false, i, j); };
    const Matrix aux(type, m, n, 32, 4);
    const Matrix d(type, m, n, m, 5);
    expect(run(CUBLASLT_EPILOGUE_BIAS, bias, aux, d),
           [&](int64_t i, int64_t j) { return dot(i, j) + bias.at(i, 0); });
    expect(run(CUBLASLT_EPILOGUE_GELU_BIAS, bias, aux, d),
           [&](int64_t i, int64_t j) { return Gelu(dot(i, j) + bias.at(i, 0)); });
    expect(run(CUBLASLT_EPILOGUE_RELU, bias, aux, d),
           [&](int64_t i, int64_t j) { return std::max(0.0, dot(i, j)); });
    expect(run(CUBLASLT_EPILOGUE_DGELU, bias, aux, d),
           [&](int64_t i, int64_t j) { return dot(i, j) * GeluGradient(aux.at(i, j)); });

    const Matrix sums(type, m, 1, m, 6);
    run(CUBLASLT_EPILOGUE_DGELU_BGRAD, sums, aux, d);
    const auto row_sums = sums.Read();
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += dot(i, j) * GeluGradient(aux.at(i, j));
      ASSERT_NEAR(row_sums[i], sum, 4 * Tolerance(type) * (1 + std::fabs(sum)));
    }

    expect(run(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, bias, aux, d),
           [&](int64_t i, int64_t j) { return Gelu(dot(i, j) + bias.at(i, 0)); });
    const auto before = aux.Read();
    for (int64_t j = 0; j < n; ++j) {
      const double value = dot(3, j) + bias.at(3, 0);
      ASSERT_NEAR(before[j * 32 + 3], value, Tolerance(type) * (1 + std::fabs(value)));
      ASSERT_TRUE(std::isnan(before[j * 32 + m]));
    }

    const Matrix by_row(type, m, 1, m, 7);
    const Matrix by_column(type, n, 1, n, 8);
    run(CUBLASLT_EPILOGUE_BGRADA, by_row, aux, d);
    run(CUBLASLT_EPILOGUE_BGRADB, by_column, aux, d);
    double sum_a = 0;
    double sum_b = 0;
    for (int64_t p = 0; p < k; ++p) {
      sum_a += a.at(2, p);
      sum_b += b.at(p, 2);
    }
    EXPECT_NEAR(by_row.Read()[2], sum_a, 2 * Tolerance(type) * (1 + std::fabs(sum_a)));
    EXPECT_NEAR(by_column.Read()[2], sum_b, 2 * Tolerance(type) * (1 + std::fabs(sum_b)));
  }
}

TEST_F(CublasLtTest, IgnoresCWhereBetaIsZeroAndTakesScalesFromTheDevice) {
  const Matrix a(CUDA_R_32F, 4, 4, 4, 1);
  const Matrix b(CUDA_R_32F, 4, 4, 4, 2);
  const Matrix d(CUDA_R_32F, 4, 4, 4, 3);
  CUDA_OK(cudaMemset(d.data, 0xff, 64));  // NaN.
  MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  BLAS_OK(Multiply(a, b, d, d));
  EXPECT_NEAR(d.Read()[0], Dot(a, false, b, false, 0, 0), 1e-5);
  float* const scales = Upload<float>({3, 0});
  Set(CUBLASLT_MATMUL_DESC_POINTER_MODE, int32_t{CUBLASLT_POINTER_MODE_DEVICE});
  BLAS_OK(cublasLtMatmul(handle_, operation_, scales, a.data, a.layout, b.data, b.layout,
                         scales + 1, d.data, d.layout, d.data, d.layout, nullptr, nullptr, 0,
                         nullptr));
  EXPECT_NEAR(d.Read()[0], 3 * Dot(a, false, b, false, 0, 0), 1e-5);
  CUDA_OK(cudaFree(scales));
}

TEST_F(CublasLtTest, Batches) {
  const Matrix a(CUDA_R_32F, 4, 6, 4, 1);  // Three matrices of 4 x 2.
  const Matrix b(CUDA_R_32F, 2, 9, 2, 2);
  const Matrix d(CUDA_R_32F, 4, 9, 4, 3);
  MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const int32_t count = 3;
  for (const auto& [matrix, cols] : {std::pair{&a, 2}, {&b, 3}, {&d, 3}}) {
    const auto columns = static_cast<uint64_t>(cols);
    const int64_t stride = matrix->ld * cols;
    BLAS_OK(cublasLtMatrixLayoutSetAttribute(matrix->layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns,
                                             sizeof(columns)));
    BLAS_OK(cublasLtMatrixLayoutSetAttribute(matrix->layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                             &count, sizeof(count)));
    BLAS_OK(cublasLtMatrixLayoutSetAttribute(
        matrix->layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  }
  BLAS_OK(Multiply(a, b, d, d));
  const auto result = d.Read();
  for (int batch = 0; batch < 3; ++batch) {
    const double expected = a.at(1, batch * 2) * b.at(0, batch * 3 + 2) +
                            a.at(1, batch * 2 + 1) * b.at(1, batch * 3 + 2);
    EXPECT_NEAR(result[(batch * 3 + 2) * 4 + 1], expected, 1e-6);
  }
}

TEST_F(CublasLtTest, TakesAnAlgorithmWithWorkspace) {
  const Matrix a(CUDA_R_32F, 16, 8192, 16, 1);
  const Matrix b(CUDA_R_32F, 8192, 16, 8192, 2);
  const Matrix d(CUDA_R_32F, 16, 16, 16, 3);
  MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulPreference_t preference = nullptr;
  BLAS_OK(cublasLtMatmulPreferenceCreate(&preference));
  cublasLtMatmulHeuristicResult_t results[4];
  int count = 0;
  const auto search = [&] {
    return cublasLtMatmulAlgoGetHeuristic(handle_, operation_, a.layout, b.layout, d.layout,
                                          d.layout, preference, 4, results, &count);
  };
  BLAS_OK(search());
  ASSERT_EQ(count, 1);  // No workspace, no split.
  EXPECT_EQ(results[0].workspaceSize, 0u);
  const uint64_t limit = 1 << 20;
  BLAS_OK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &limit, sizeof(limit)));
  BLAS_OK(search());
  ASSERT_EQ(count, 2);
  ASSERT_GT(results[0].workspaceSize, 0u);
  int32_t split = 0;
  BLAS_OK(cublasLtMatmulAlgoConfigGetAttribute(&results[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                               &split, sizeof(split), nullptr));
  EXPECT_GT(split, 1);
  const auto multiply = [&](void* workspace, size_t size) {
    return cublasLtMatmul(handle_, operation_, &alpha_, a.data, a.layout, b.data, b.layout, &beta_,
                          d.data, d.layout, d.data, d.layout, &results[0].algo, workspace, size,
                          nullptr);
  };
  EXPECT_EQ(multiply(nullptr, 0), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(nullptr, 1 << 20), CUBLAS_STATUS_INVALID_VALUE);
  char* const workspace = NewOnDevice<char>(1 << 20);
  EXPECT_EQ(multiply(workspace + 16, limit - 16), CUBLAS_STATUS_INVALID_VALUE);
  BLAS_OK(multiply(workspace, limit));
  EXPECT_NEAR(d.Read()[0], Dot(a, false, b, false, 0, 0), 2e-3);
  const auto no_split = uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE};
  BLAS_OK(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_split, sizeof(no_split)));
  BLAS_OK(search());
  EXPECT_EQ(count, 1);
  CUDA_OK(cudaFree(workspace));
  BLAS_OK(cublasLtMatmulPreferenceDestroy(preference));
}

TEST_F(CublasLtTest, RefusesWhatTheRealOneRefuses) {
  const Matrix a(CUDA_R_16BF, 16, 16, 16, 1);
  const Matrix b(CUDA_R_16BF, 16, 16, 16, 2);
  const Matrix d(CUDA_R_16BF, 16, 16, 16, 3);
  const Matrix f32(CUDA_R_32F, 16, 16, 16, 4);
  const Matrix f64(CUDA_R_64F, 16, 16, 16, 4);
  const Matrix wide(CUDA_R_16BF, 16, 17, 16, 5);
  MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  EXPECT_EQ(Multiply(a, wide, d, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(wide, b, d, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(a, f32, d, d), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Multiply(f32, f32, d, d), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Multiply(f64, f64, f64, f64), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cublasLtMatmul(nullptr, operation_, &alpha_, a.data, a.layout, b.data, b.layout, &beta_,
                           d.data, d.layout, d.data, d.layout, nullptr, nullptr, 0, nullptr),
            CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(
      cublasLtMatmul(handle_, operation_, &alpha_, a.data + 1, a.layout, b.data, b.layout, &beta_,
                     d.data, d.layout, d.data, d.layout, nullptr, nullptr, 0, nullptr),
      CUBLAS_STATUS_INVALID_VALUE);
  const int32_t narrow = 0;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &narrow,
                                           sizeof(narrow)),
            CUBLAS_STATUS_INVALID_VALUE);
  const int64_t ld = 15;
  BLAS_OK(
      cublasLtMatrixLayoutSetAttribute(wide.layout, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof(ld)));
  EXPECT_EQ(Multiply(wide, wide, d, d), CUBLAS_STATUS_INVALID_VALUE);

  // Epilogues.
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
  EXPECT_EQ(Multiply(a, b, d, d), CUBLAS_STATUS_INVALID_VALUE);  // No bias.
  Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(f32.data + 2));
  EXPECT_EQ(Multiply(a, b, d, d), CUBLAS_STATUS_NOT_SUPPORTED);  // Alignment.
  Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(f32.data));
  Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_32F});
  EXPECT_EQ(Multiply(a, b, d, d), CUBLAS_STATUS_NOT_SUPPORTED);
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_GELU_AUX});
  EXPECT_EQ(Multiply(a, b, d, d), CUBLAS_STATUS_INVALID_VALUE);
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(f64.data));
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{17});
  EXPECT_EQ(Multiply(a, b, d, d), CUBLAS_STATUS_NOT_SUPPORTED);
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{16});
  BLAS_OK(Multiply(a, b, d, d));
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{3});
  EXPECT_EQ(Multiply(a, b, d, d), CUBLAS_STATUS_NOT_SUPPORTED);
  MakeOperation(CUBLAS_COMPUTE_64F, CUDA_R_64F);
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_GELU});
  EXPECT_EQ(Multiply(f64, f64, f64, f64), CUBLAS_STATUS_NOT_SUPPORTED);
  CUDA_OK(cudaDeviceSynchronize());
}

TEST_F(CublasLtTest, PromisedAlignmentHolds) {
  const Matrix a(CUDA_R_16BF, 24, 8, 24, 1);
  const Matrix b(CUDA_R_16BF, 8, 8, 8, 2);
  const Matrix d(CUDA_R_16BF, 16, 8, 16, 3);
  MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const uint64_t rows = 16;
  BLAS_OK(
      cublasLtMatrixLayoutSetAttribute(a.layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof(rows)));
  cublasLtMatmulPreference_t preference = nullptr;
  BLAS_OK(cublasLtMatmulPreferenceCreate(&preference));
  for (const uint32_t promised : {256u, 2u}) {
    BLAS_OK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &promised, sizeof(promised)));
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    BLAS_OK(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, a.layout, b.layout, d.layout,
                                           d.layout, preference, 1, &result, &count));
    const auto status =
        cublasLtMatmul(handle_, operation_, &alpha_, a.data + 2, a.layout, b.data, b.layout, &beta_,
                       d.data, d.layout, d.data, d.layout, &result.algo, nullptr, 0, nullptr);
    EXPECT_EQ(status, promised == 256 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS);
  }
  BLAS_OK(cublasLtMatmulPreferenceDestroy(preference));
  CUDA_OK(cudaDeviceSynchronize());
}

TEST_F(CublasLtTest, GivesTheSameBitsAgain) {
  const Matrix a(CUDA_R_32F, 300, 500, 300, 1);
  const Matrix b(CUDA_R_32F, 500, 300, 500, 2);
  const Matrix d(CUDA_R_32F, 300, 300, 300, 3);
  MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  BLAS_OK(Multiply(a, b, d, d));
  const auto first = d.Read();
  for (int i = 0; i < 3; ++i) {
    BLAS_OK(Multiply(a, b, d, d));
    ASSERT_EQ(d.Read(), first);
  }
}

TEST_F(CublasLtTest, RunsInTheStreamAndInGraphs) {
  SettingsGuard settings;
  settings->delay_ms = 60000;
  const Matrix a(CUDA_R_32F, 4, 4, 4, 1);
  const Matrix b(CUDA_R_32F, 4, 4, 4, 2);
  const Matrix d(CUDA_R_32F, 4, 4, 4, 3);
  MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  BLAS_OK(Multiply(a, b, d, d, stream));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaGraphInstantiate(&exec, graph));
  EXPECT_EQ(d.Read()[0], d.at(0, 0));  // Not multiplied yet.
  CUDA_OK(cudaGraphLaunch(exec, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_NEAR(d.Read()[0], Dot(a, false, b, false, 0, 0), 1e-6);
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
}

using CublasLtDeathTest = CublasLtTest;

TEST_F(CublasLtDeathTest, ReportsOperandsOutOfBoundsAndSharedWorkspaces) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Matrix a(CUDA_R_32F, 16, 16, 16, 1);
  const Matrix b(CUDA_R_32F, 16, 16, 16, 2);
  const Matrix d(CUDA_R_32F, 16, 16, 16, 3);
  const Matrix e(CUDA_R_32F, 16, 16, 16, 3);
  MakeOperation(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const auto multiply = [&](const void* left, void* out, void* workspace, cudaStream_t stream) {
    return cublasLtMatmul(handle_, operation_, &alpha_, left, a.layout, b.data, b.layout, &beta_,
                          out, d.layout, out, d.layout, nullptr, workspace,
                          workspace == nullptr ? 0 : 1024, stream);
  };
  EXPECT_DEATH(multiply(a.data + 4, d.data, nullptr, nullptr), "A \\(1024 bytes\\) goes beyond");
  float host[256];
  EXPECT_DEATH(multiply(host, d.data, nullptr, nullptr), "A is not in memory of the device");
  EXPECT_DEATH(multiply(a.data, a.data, nullptr, nullptr), "overlaps");
  char* const workspace = NewOnDevice<char>(1024);
  cudaStream_t one = nullptr;
  cudaStream_t two = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  CUDA_OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
  CUDA_OK(cudaDeviceSynchronize());
  BLAS_OK(multiply(a.data, d.data, workspace, one));
  EXPECT_DEATH(multiply(a.data, e.data, workspace, two), "nothing orders the two");
  CUDA_OK(cudaDeviceSynchronize());
  BLAS_OK(multiply(a.data, e.data, workspace, two));
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaStreamDestroy(one));
  CUDA_OK(cudaStreamDestroy(two));
  CUDA_OK(cudaFree(workspace));
}

TEST(FloatTypesTest, RoundLikeHardware) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float half = rt::FromHalf(static_cast<uint16_t>(bits));
    if (std::isnan(half)) continue;
    ASSERT_EQ(rt::ToHalf(half), bits);
  }
  EXPECT_EQ(rt::ToHalf(65519.996f), 0x7bff);
  EXPECT_EQ(rt::ToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(rt::ToHalf(1.0f + 1.0f / 2048), 0x3c00);  // A tie, to even.
  EXPECT_EQ(rt::ToHalf(1.0f + 3.0f / 2048), 0x3c02);
  EXPECT_EQ(rt::ToHalf(std::ldexp(1.0f, -25)), 0);
  EXPECT_EQ(rt::ToHalf(std::ldexp(1.5f, -25)), 1);
  EXPECT_EQ(rt::ToBf16(1.0f + 1.0f / 256), 0x3f80);
  EXPECT_EQ(rt::ToBf16(1.0f + 3.0f / 256), 0x3f82);
  EXPECT_EQ(rt::FromE4m3(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(rt::FromE4m3(0x7f)));
  EXPECT_EQ(rt::FromE4m3(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(rt::FromE5m2(0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(rt::FromE5m2(0xfc)));
}

}  // namespace
}  // namespace cudasim_test
