#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/philox.h"
#include "core/thread_pool.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "tests/sanitized.h"

namespace lockstep::cpu {
namespace {

using test::kSanitized;

constexpr char kNoUnits[] = "this CPU has no units for bf16, or a sanitizer takes too long";

struct Problem {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 1, n = 1, k = 1, batch = 1;
  int64_t padding = 0;  // of rows
  bool accumulate = false, bias = false, gelu = false, share_b = false, d_gelu = false;
};

std::ostream& operator<<(std::ostream& out, const Problem& p) {
  return out << (p.transpose_a ? "T" : "N") << (p.transpose_b ? "T" : "N") << " " << p.m << "x"
             << p.n << "x" << p.k << " batch " << p.batch << " padding " << p.padding
             << (p.accumulate ? " accumulate" : "") << (p.bias ? " bias" : "")
             << (p.gelu ? " gelu" : "") << (p.share_b ? " shared b" : "")
             << (p.d_gelu ? " gelu's derivative" : "");
}

template <class T>
std::vector<T> Random(int64_t n, uint64_t stream) {
  std::vector<T> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    v[i] = Convert<T>(2 * ToUniform(Philox(5).At(stream, i)) - 1);
  }
  return v;
}

template <class T, class C>
struct Product {
  Problem p;
  GemmArgs g;
  std::vector<T> a, b;
  std::vector<C> c, before, bias, pre;

  explicit Product(const Problem& problem) : p(problem) {
    const int64_t rows_a = p.transpose_a ? p.k : p.m, rows_b = p.transpose_b ? p.n : p.k;
    g.transpose_a = p.transpose_a;
    g.transpose_b = p.transpose_b;
    g.m = p.m;
    g.n = p.n;
    g.k = p.k;
    g.dtype = DTypeOf<T>;
    g.c_dtype = DTypeOf<C>;
    g.lda = (p.transpose_a ? p.m : p.k) + p.padding;
    g.ldb = (p.transpose_b ? p.k : p.n) + p.padding;
    g.ldc = p.n + p.padding;
    g.batch = p.batch;
    g.stride_a = rows_a * g.lda;
    g.stride_b = p.share_b ? 0 : rows_b * g.ldb;
    g.stride_c = p.m * g.ldc;
    a = Random<T>(g.stride_a * p.batch, 1);
    b = Random<T>(rows_b * g.ldb * p.batch, 2);
    before = c = Random<C>(g.stride_c * p.batch, 3);
    bias = Random<C>(p.n, 4);
    pre = c;
    g.a = a.data();
    g.b = b.data();
    g.c = c.data();
    g.accumulate = p.accumulate;
    if (p.bias) g.bias = bias.data();
    g.gelu = p.gelu;
    if (p.gelu) g.pre_activation = pre.data();
    if (p.d_gelu) g.gelu_input = pre.data();
  }

  // Element (i, j) of A B by the law of kernels/cpu/gemm.h, and with what follows it.
  Acc<T> Sum(int64_t batch, int64_t i, int64_t j, Acc<T> sum) const {
    const T* x = a.data() + batch * g.stride_a + (p.transpose_a ? i : i * g.lda);
    const T* y = b.data() + batch * g.stride_b + (p.transpose_b ? j * g.ldb : j);
    const int64_t step_x = p.transpose_a ? g.lda : 1, step_y = p.transpose_b ? 1 : g.ldb;
    for (int64_t begin = 0; begin < p.k; begin += 256) {
      Acc<T> chain = 0;
      for (int64_t l = begin; l < std::min(p.k, begin + 256); ++l) {
        chain = std::fma(Convert<Acc<T>>(x[l * step_x]), Convert<Acc<T>>(y[l * step_y]), chain);
      }
      sum += chain;
    }
    return sum;
  }

  struct Element {
    C c, pre;
  };
  Element ByLaw(int64_t batch, int64_t i, int64_t j) const {
    using A = Acc<T>;
    const int64_t at = batch * g.stride_c + i * g.ldc + j;
    const A old = Convert<A>(before[at]);
    if (p.accumulate && std::is_same_v<A, C>) return {Convert<C>(Sum(batch, i, j, old)), pre[at]};
    const A sum = Sum(batch, i, j, 0) + (p.bias ? Convert<A>(bias[j]) : 0);
    if (p.accumulate) return {Convert<C>(old + sum), pre[at]};
    if (p.d_gelu) return {Convert<C>(sum * GeluDerivative(Convert<A>(pre[at]))), pre[at]};
    return {Convert<C>(p.gelu ? Gelu(sum) : sum), p.gelu ? Convert<C>(sum) : pre[at]};
  }

  // Multiplies, and compares up to so many drawn elements to the bit, and what lies between rows.
  void CheckAgainstTheLaw(int64_t elements) {
    Gemm(g);
    const int64_t all = p.batch * p.m * p.n;
    for (int64_t draw = 0; draw < std::min(all, elements); ++draw) {
      const int64_t e =
          all <= elements ? draw : static_cast<int64_t>(Philox(9).At(0, draw) % uint64_t(all));
      const int64_t batch = e / (p.m * p.n), i = e / p.n % p.m, j = e % p.n;
      const int64_t at = batch * g.stride_c + i * g.ldc + j;
      const Element want = ByLaw(batch, i, j);
      ASSERT_EQ(std::memcmp(&c[at], &want.c, sizeof(C)), 0)
          << p << " at " << i << ", " << j << ": " << Convert<double>(c[at]) << " for "
          << Convert<double>(want.c);
      ASSERT_EQ(std::memcmp(&pre[at], &want.pre, sizeof(C)), 0) << p << " at " << i << ", " << j;
    }
    for (int64_t at = 0; at < std::ssize(c); ++at) {
      if (at % g.ldc < p.n) continue;
      ASSERT_EQ(std::memcmp(&c[at], &before[at], sizeof(C)), 0) << p << ": wrote beyond a row";
    }
  }

  void CheckAgainstDoubles() {
    Gemm(g);
    const double unit = std::is_same_v<C, BF16> ? 4e-3 : std::is_same_v<T, double> ? 1e-15 : 6e-8;
    const double sum_unit = std::is_same_v<T, double> ? 1e-15 : 6e-8;
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n + p.padding; ++j) {
          const int64_t at = batch * g.stride_c + i * g.ldc + j;
          const double got = Convert<double>(c[at]);
          if (j >= p.n) {
            ASSERT_EQ(got, Convert<double>(before[at])) << p << ": wrote beyond a row";
            continue;
          }
          double want = p.accumulate ? Convert<double>(before[at]) : 0, squares = want * want;
          for (int64_t l = 0; l < p.k; ++l) {
            const T x = a[batch * g.stride_a + (p.transpose_a ? l * g.lda + i : i * g.lda + l)];
            const T y = b[batch * g.stride_b + (p.transpose_b ? j * g.ldb + l : l * g.ldb + j)];
            want += Convert<double>(x) * Convert<double>(y);
            squares += std::pow(Convert<double>(x) * Convert<double>(y), 2);
          }
          if (p.bias) want += Convert<double>(bias[j]);
          // Partial sums grow as a random walk, and so do their rounding errors.
          const double error = 2 * sum_unit * (1 + std::sqrt(p.k)) * std::sqrt(squares + 1);
          if (p.gelu) {
            ASSERT_NEAR(Convert<double>(pre[at]), want, error + unit * std::fabs(want)) << p;
            want = Gelu(want);
          }
          if (p.d_gelu) want *= GeluDerivative(Convert<double>(pre[at]));
          ASSERT_NEAR(got, want, 1.2 * error + 2 * unit * std::fabs(want) + 2 * sum_unit)
              << p << " at " << i << ", " << j;
        }
      }
    }
  }
};

template <class T, class C>
void CheckAll() {
  std::vector<Problem> problems;
  for (int transposes = 0; transposes < 4; ++transposes) {
    const bool ta = transposes & 1, tb = transposes & 2;
    for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                     {1, 7, 300},
                                                                     {9, 1, 33},
                                                                     {3, 5, 0},
                                                                     {2, 3, 4},
                                                                     {17, 65, 129},
                                                                     {130, 200, 50},
                                                                     {64, 48, 4200},
                                                                     {300, 97, 31}}) {
      problems.push_back({ta, tb, m, n, k});
      problems.push_back({ta, tb, m, n, k, 1, 3, true});
      problems.push_back({ta, tb, m, n, k, 1, 5, false, true});
    }
    problems.push_back({ta, tb, 33, 20, 17, 5, 2, false, true, true});
    problems.push_back({ta, tb, 33, 20, 17, 5, 0, true, false, false, true});
    problems.push_back({ta, tb, 130, 200, 50, 2, 3, false, false, false, false, true});
  }
  problems.push_back({false, true, 40, 300, 20, 1, 0, false, false, true});
  for (const Problem& p : problems) {
    Product<T, C> run(p);
    run.CheckAgainstDoubles();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Products of sizes that are drawn log-uniformly, from 0, and of everything else.
Problem DrawProblem(uint64_t number, int64_t longest, int64_t multiplications) {
  uint64_t at = 0;
  const auto any = [&](int64_t n) {
    return static_cast<int64_t>(Philox(11).At(number, at++) % static_cast<uint64_t>(n));
  };
  const auto size = [&](int64_t most) {
    const double x = ToUniform(Philox(11).At(number, at++));
    return static_cast<int64_t>(std::exp(x * std::log(most + 1.999))) - 1 + any(2);
  };
  Problem p;
  p.transpose_a = any(2) == 0;
  p.transpose_b = any(2) == 0;
  do {
    p.m = size(longest);
    p.n = size(longest);
    p.k = size(longest);
  } while (p.m * p.n * p.k > multiplications);
  p.batch = any(8) == 0 && p.m * p.n * p.k < (1 << 16) ? 1 + any(5) : 1;
  p.share_b = any(2) == 0;
  p.padding = any(2) * any(20);
  // Columns of A that a cache keeps in the same sets.
  if (p.transpose_a && any(4) == 0) p.padding = (1024 - p.m % 1024) % 1024;
  const int64_t follows = any(6);
  p.accumulate = follows == 0;
  p.d_gelu = follows == 1;
  p.bias = follows == 2 || follows == 3;
  p.gelu = follows == 3 || follows == 4;
  return p;
}

template <class T, class C>
void CheckTheLaw(int64_t draws, int64_t longest, int64_t multiplications) {
  const int before = NumThreads();
  for (int64_t draw = 0; draw < draws && !testing::Test::HasFatalFailure(); ++draw) {
    const Problem p = DrawProblem(static_cast<uint64_t>(draw), longest, multiplications);
    SetNumThreads(1 + static_cast<int>(draw % 8));
    Product<T, C> run(p);
    run.g.bf16 = GemmArgs::BF16Products::kConverted;
    run.CheckAgainstTheLaw(4096);
  }
  SetNumThreads(before);
}

constexpr int64_t kDraws = kSanitized ? 100 : 2000, kFewDraws = kDraws / 10;

TEST(GemmLaw, F32) { CheckTheLaw<float, float>(kDraws, 2000, 1 << (kSanitized ? 16 : 28)); }
TEST(GemmLaw, LargeF32) {
  if (!kSanitized) CheckTheLaw<float, float>(20, 5000, int64_t{1} << 34);
}
TEST(GemmLaw, F32IntoF64) { CheckTheLaw<float, double>(kFewDraws, 300, 1 << 20); }
TEST(GemmLaw, F64) { CheckTheLaw<double, double>(kFewDraws, 300, 1 << 20); }
TEST(GemmLaw, BF16) { CheckTheLaw<BF16, float>(kFewDraws, 300, 1 << 20); }
TEST(GemmLaw, BF16IntoBF16) { CheckTheLaw<BF16, BF16>(kFewDraws, 300, 1 << 20); }
TEST(GemmLaw, F16IntoF16) { CheckTheLaw<F16, F16>(kFewDraws, 300, 1 << 20); }

// As in the loop: infinities, and the smallest numbers.
TEST(GemmLaw, OfInfinitiesAndDenormals) {
  Product<float, float> run({false, true, 20, 40, 300});
  for (size_t i = 0; i < run.a.size(); i += 7) run.a[i] *= 1e-41f;
  for (size_t i = 0; i < run.b.size(); i += 5) run.b[i] = i % 3 == 0 ? 1e30f : 1e-3f;
  run.a[5] = std::numeric_limits<float>::infinity();
  run.a[300] = std::numeric_limits<float>::infinity();
  run.b[0] = 0;
  Gemm(run.g);
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 40; ++j) {
      const float got = run.c[i * 40 + j], want = run.Sum(0, i, j, 0);
      ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : std::memcmp(&got, &want, 4) == 0)
          << got << " for " << want << " at " << i << ", " << j;
    }
  }
}

TEST(Gemm, BF16ByOneDnnIntoF32) {
  if (!HasBF16Products() || kSanitized) GTEST_SKIP() << kNoUnits;
  CheckAll<BF16, float>();
}
TEST(Gemm, BF16ByOneDnnIntoBF16) {
  if (!HasBF16Products() || kSanitized) GTEST_SKIP() << kNoUnits;
  CheckAll<BF16, BF16>();
}

TEST(Gemm, ProductsInOneCallHaveTheBitsOfOneCallEach) {
  const std::vector<Problem> problems = {{false, false, 768, 128, 384},
                                         {true, false, 384, 128, 768, 1, 0, true},
                                         {false, true, 0, 7, 9},
                                         {false, true, 33, 20, 17, 5, 2, false, true, true}};
  std::vector<Product<float, float>> apart, together;
  std::vector<GemmArgs> args;
  for (const Problem& p : problems) apart.emplace_back(p), together.emplace_back(p);
  for (size_t i = 0; i < problems.size(); ++i) {
    Gemm(apart[i].g);
    args.push_back(together[i].g);
  }
  Gemm(args);
  for (size_t i = 0; i < problems.size(); ++i) {
    EXPECT_EQ(apart[i].c, together[i].c) << problems[i];
    EXPECT_EQ(apart[i].pre, together[i].pre) << problems[i];
  }
}

// Half of a product of a matrix and its transpose, or of two equal symmetric ones, and its copy
// have the bits of the whole.
template <class T, class C>
void CheckSymmetric() {
  const std::vector<Problem> problems = {{false, true, 1, 1, 5},
                                         {false, true, 7, 7, 3},
                                         {true, false, 33, 33, 300},
                                         {false, true, 128, 128, 1},
                                         {true, false, 128, 128, 344, 1, 3},
                                         {false, true, 130, 130, 64, 3},
                                         {false, true, 700, 700, 90},
                                         {true, false, 1000, 1000, 260}};
  for (const Problem& p : problems) {
    Product<T, C> whole(p), half(p);
    for (Product<T, C>* x : {&whole, &half}) {
      x->b = x->a;
      x->g.b = x->b.data();
      x->g.ldb = x->g.lda;
      x->g.stride_b = x->g.stride_a;
    }
    half.g.symmetric = true;
    Gemm(whole.g);
    Gemm(half.g);
    ASSERT_EQ(std::memcmp(half.c.data(), whole.c.data(), whole.c.size() * sizeof(C)), 0) << p;
    if (p.padding > 0 || p.batch > 1 || !std::is_same_v<T, C>) continue;
    Product<T, C> square({false, false, p.m, p.m, p.m});
    square.g.a = square.g.b = whole.c.data();
    const std::vector<C> twice = (Gemm(square.g), square.c);
    square.g.symmetric = true;
    std::ranges::fill(square.c, C(7));
    Gemm(square.g);
    ASSERT_EQ(std::memcmp(square.c.data(), twice.data(), twice.size() * sizeof(C)), 0) << p;
  }
}

TEST(GemmSymmetric, HasTheBitsOfTheWhole) {
  const int threads = NumThreads();
  for (const int n : {1, 3}) {
    SetNumThreads(n);
    CheckSymmetric<float, float>();
    CheckSymmetric<double, double>();
    CheckSymmetric<BF16, float>();
  }
  SetNumThreads(threads);
}

// Threads remember what they packed of a product's operands, but not from one product to the next.
template <class T>
void CheckOperandsAreReadAgain() {
  for (const bool transpose_a : {false, true}) {
    const Problem p{transpose_a, true, 300, 700, 100, 2, /*padding=*/724};
    Product<T, float> fresh(p), reused(p);
    const auto reverse = [](Product<T, float>& x) {
      for (auto* operand : {&x.a, &x.b}) std::reverse(operand->begin(), operand->end());
    };
    reverse(fresh);
    Gemm(fresh.g);
    Gemm(reused.g);
    reverse(reused);
    Gemm(reused.g);
    EXPECT_EQ(reused.c, fresh.c) << p;
  }
}

TEST(Gemm, OperandsAreReadAgain) {
  CheckOperandsAreReadAgain<float>();
  CheckOperandsAreReadAgain<BF16>();
}

template <class T, class C>
void CheckThreads() {
  const int before = NumThreads();
  const std::vector<Problem> problems = {{false, true, 768, 384, 128},
                                         {false, false, 768, 128, 384},
                                         {true, false, 384, 128, 768},
                                         {true, false, 65, 128, 768, 1, 0, true},
                                         {false, true, 256, 640, 768, 1, 0, false, true, true},
                                         {false, false, 100, 96, 5000},
                                         {true, false, 640, 768, 256, 1, 0, true},
                                         {false, true, 40, 40, 40, 7}};
  for (const Problem& p : problems) {
    std::vector<C> one;
    for (int threads : {1, 2, 3, 4, 8}) {
      SetNumThreads(threads);
      Product<T, C> run(p);
      Gemm(run.g);
      if (threads == 1) one = run.c;
      ASSERT_EQ(std::memcmp(one.data(), run.c.data(), one.size() * sizeof(C)), 0)
          << p << ": " << threads << " threads gave different bits than one";
    }
  }
  SetNumThreads(before);
}

TEST(GemmThreads, BF16ByOneDnn) {
  if (!HasBF16Products() || kSanitized) GTEST_SKIP() << kNoUnits;
  CheckThreads<BF16, float>();
}

// One element of a large product against the same element of products of parts of it, laid out in
// every way.
template <class T>
void CheckParts() {
  if (!HasBF16Products() || kSanitized) GTEST_SKIP() << kNoUnits;
  constexpr int64_t kM = 300, kN = 400;
  constexpr int64_t kRows[] = {1, 2, 8, 9, 32, 64, 131}, kColumns[] = {1, 2, 16, 65, 130, 300};
  for (const int64_t k : {1, 17, 100, 256, 1025, 4095, 4999}) {
    for (const bool accumulate : {false, true}) {
      Product<T, float> whole({false, false, kM, kN, k, 1, 0, accumulate});
      Gemm(whole.g);
      for (int64_t draw = 0; draw < 24; ++draw) {
        const auto any = [&](uint64_t what, int64_t n) {
          return static_cast<int64_t>(Philox(7).At(what, 100 * k + draw)) % n;
        };
        Problem p{any(0, 2) == 0, any(1, 2) == 0, kRows[any(2, 7)], kColumns[any(3, 6)], k};
        p.padding = any(4, 3);
        p.accumulate = accumulate;
        const int64_t row = any(5, kM - p.m), column = any(6, kN - p.n);
        Product<T, float> part(p);
        for (int64_t l = 0; l < k; ++l) {
          for (int64_t i = 0; i < p.m; ++i) {
            part.a[p.transpose_a ? l * part.g.lda + i : i * part.g.lda + l] =
                whole.a[(row + i) * k + l];
          }
          for (int64_t j = 0; j < p.n; ++j) {
            part.b[p.transpose_b ? j * part.g.ldb + l : l * part.g.ldb + j] =
                whole.b[l * kN + column + j];
          }
        }
        for (int64_t i = 0; i < p.m; ++i) {
          std::copy_n(&whole.before[(row + i) * kN + column], p.n, &part.c[i * part.g.ldc]);
        }
        Gemm(part.g);
        for (int64_t i = 0; i < p.m; ++i) {
          ASSERT_EQ(std::memcmp(&part.c[i * part.g.ldc], &whole.c[(row + i) * kN + column],
                                static_cast<size_t>(p.n) * sizeof(float)),
                    0)
              << p << " from row " << row << ", column " << column;
        }
      }
    }
  }
}

TEST(GemmParts, BF16ByOneDnnHaveTheBitsOfTheWhole) { CheckParts<BF16>(); }

}  // namespace
}  // namespace lockstep::cpu
