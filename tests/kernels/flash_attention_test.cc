// Flash attention on tensor cores, over shapes drawn at random: against the CPU's f64, beside the
// plain f32 kernels, and with threads in every order.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <new>

#include "core/autograd/engine.h"
#include "core/cuda/device.h"
#include "core/philox.h"
#include "cudasim/executor.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_kernels.h"
#include "tests/gpu_test.h"
#include "tests/kernels/capability.h"

namespace {
thread_local int64_t allocations = 0;
}  // namespace

void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace lockstep {
namespace {

using cuda::AttentionKernels;
using cuda::AttentionKernelsScope;

using test::kGpu;
constexpr uint64_t kSite = 77;

struct Case {
  int64_t batch = 1, length = 1, groups = 1, heads_of_group = 1, d = 8;
  double dropout = 0, softcap = 0;
  int64_t window = 0;
  int64_t documents = 0;    // of equal length, the last one shorter; 0: no first keys
  bool joint = false;       // q, k and v are views of one tensor
  bool accumulate = false;  // onto existing gradients
  DType dtype = DType::kBF16;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.Describe(); }
  std::string Describe() const {
    return StrCat("B ", batch, ", T ", length, ", G ", groups, ", H ", groups * heads_of_group,
                  ", D ", d, ", dropout ", dropout, ", softcap ", softcap, ", window ", window,
                  ", documents ", documents, joint ? ", joint" : "",
                  accumulate ? ", accumulate" : "", ", ", dtype);
  }
};

// The lengths include every tile's border: tiles have 32, 64 and 128 rows.
std::vector<Case> Cases() {
  constexpr std::array<int64_t, 14> kLengths = {1,  2,  15,  16,  31,  33,  63,
                                                64, 65, 100, 127, 128, 129, 197};
  constexpr std::array<int64_t, 8> kSizes = {64, 128, 8, 72, 64, 128, 40, 104};
  std::vector<Case> cases;
  const Philox random(2026);
  constexpr uint64_t kPlain = 40, kAll = 88;
  for (uint64_t i = 0; i < kAll; ++i) {
    const auto draw = [&](uint64_t what, uint64_t n) {
      return static_cast<int64_t>(random.At(i, what) % n);
    };
    Case c;
    c.length = kLengths[i % kLengths.size()];
    c.d = kSizes[i % kSizes.size()];
    c.batch = 1 + draw(0, 2);
    c.groups = 1 + draw(1, 2);
    c.heads_of_group = 1 + draw(2, 3);
    c.dropout = draw(3, 3) == 0 ? 0.25 : 0;
    c.joint = draw(4, 2) == 0;
    c.accumulate = draw(5, 3) == 0;
    if (i % 3 == 2) c.dtype = DType::kF16;
    if (i >= kPlain) {
      if (draw(6, 2) == 0) c.window = 1 + draw(7, static_cast<uint64_t>(c.length) + 8);
      if (draw(8, 2) == 0) c.softcap = 1.5;  // scores have a standard deviation of 1.3
      if (draw(9, 2) == 0) c.documents = 1 + draw(10, 6);
    }
    cases.push_back(c);
  }
  return cases;
}

// Values that bf16 holds exactly, so that every kernel sees the same ones.
Tensor Values(const Shape& shape, uint64_t stream, double scale = 2) {
  const Philox random(11);
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (ToUniform(random.At(stream, i)) - 0.5) * 2 * scale;
  }
  return Tensor::FromVector(values, shape).To(DType::kBF16).To(DType::kF64);
}

// y, then the gradients of the inputs, on the CPU.
std::vector<Tensor> Compute(const Case& c, DType dtype, Device device) {
  const int64_t heads = c.groups * c.heads_of_group;
  std::vector<Shape> shapes = {{c.batch, c.length, heads, c.d},
                               {c.batch, c.length, c.groups, c.d},
                               {c.batch, c.length, c.groups, c.d}};
  if (c.joint) shapes = {{c.batch, c.length, (heads + 2 * c.groups) * c.d}};
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < shapes.size(); ++i) {
    Tensor x = Values(shapes[i], i).To(dtype).To(device);
    x.SetRequiresGrad();
    if (c.accumulate) {
      x.autograd()->leaf->SetGrad(Values(shapes[i], 10 + i, 1).To(dtype).To(device));
    }
    inputs.push_back(x);
  }
  StepState state(device, 5);
  state.Begin(3, 0.1);
  state.SetFirstSample(2);
  const TrainingScope scope(state);
  ops::CausalAttentionOptions options{
      .dropout = c.dropout, .site = kSite, .softcap = c.softcap, .window = c.window};
  if (c.documents > 0) {
    const int64_t size = (c.length + c.documents - 1) / c.documents;
    std::vector<int32_t> first_key;
    for (int64_t i = 0; i < c.batch * c.length; ++i) {
      first_key.push_back(static_cast<int32_t>(i % c.length / size * size));
    }
    options.first_key = Tensor::FromVector(first_key, {c.batch, c.length}, device);
  }
  const Tensor y = c.joint ? ops::CausalAttention(inputs[0], heads, c.groups, options)
                           : ops::CausalAttention(inputs[0], inputs[1], inputs[2], options);
  Backward(y, Values(y.shape(), 20, 1).To(dtype).To(device));
  std::vector<Tensor> results = {y.Detach().To(kCpu)};
  for (const Tensor& x : inputs) results.push_back(x.grad().To(kCpu));
  return results;
}

std::vector<double> Doubles(const Tensor& x) { return x.To(DType::kF64).ToVector<double>(); }

// The largest difference, over the sum of the wanted element's size and the tensor's rms (as the
// tolerances of an OpCase), and the rms difference over the rms. Not below 0.05: gradients are sums
// of terms around 1, which cancel altogether where a query sees one key.
struct Errors {
  double largest = 0, rms = 0;
};
Errors Compare(const Tensor& got, const Tensor& want) {
  const std::vector<double> a = Doubles(got), b = Doubles(want);
  const auto n = static_cast<double>(b.size());
  double sum = 0, errors = 0, largest = 0;
  for (const double v : b) sum += v * v;
  const double scale = std::max(std::sqrt(sum / n), 0.05);
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(a[i])) return {INFINITY, INFINITY};
    const double error = std::abs(a[i] - b[i]);
    largest = std::max(largest, error / (std::abs(b[i]) + scale));
    errors += error * error;
  }
  return {largest, std::sqrt(errors / n) / scale};
}

std::vector<std::byte> Bytes(const Tensor& x) {
  const Tensor host = x.Contiguous();
  const auto* begin = static_cast<const std::byte*>(host.raw_data());
  return {begin, begin + host.bytes()};
}

template <class F>
void ForEachOrder(const F& f) {
  if (!test::ContainsSimulator()) {
    f();
    f();
    return;
  }
  cudasim::ExecutorSettings& settings = cudasim::GetExecutorSettings();
  const cudasim::ExecutorSettings before = settings;
  for (const cudasim::Order order :
       {cudasim::Order::kForward, cudasim::Order::kReverse, cudasim::Order::kRandom}) {
    settings.order = order;
    f();
  }
  settings = before;
}

class FlashAttention : public test::GpuTest {};

class FlashShapes : public FlashAttention, public testing::WithParamInterface<Case> {};

// Beside what rounding inputs and results costs the plain kernels in 16 bits, flash kernels round
// probabilities and their gradients once before they multiply them.
TEST_P(FlashShapes, FollowsF64AndHasTheSameBitsInEveryOrder) {
  const Case& c = GetParam();
  SCOPED_TRACE(c.Describe());
  const std::vector<Tensor> want = Compute(c, DType::kF64, kCpu);
  std::vector<Tensor> plain, plain_narrow;
  const bool f16 = c.dtype == DType::kF16;
  {
    const AttentionKernelsScope scope(AttentionKernels::kPlain);
    plain = Compute(c, DType::kF32, kGpu);
    plain_narrow = Compute(c, c.dtype, kGpu);
  }
  std::vector<Tensor> first;
  ForEachOrder([&] {
    const AttentionKernelsScope scope(AttentionKernels::kFlash);
    const std::vector<Tensor> got = Compute(c, c.dtype, kGpu);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(i == 0 ? std::string("y") : StrCat("gradient ", i - 1));
      const double factor = i == 0 ? 1 : 2;  // the ceilings of dtypes, for gradients twice
      EXPECT_LT(Compare(plain[i], want[i]).largest, 1e-5 * factor);
      const double rounding = Compare(plain_narrow[i], want[i]).rms;
      for (const Tensor& other : {want[i], plain[i]}) {
        const Errors errors = Compare(got[i], other);
        // The terms of gradients are 16-bit differences of numbers that dropout enlarges.
        const double enlarged = i == 0 ? 1 : 1 / (1 - c.dropout);
        EXPECT_LT(errors.largest, (f16 ? 2e-3 : 1.6e-2) * factor * enlarged);
        EXPECT_LT(errors.rms, 2.5 * rounding + (f16 ? 1.25e-5 : 1e-4));
      }
      if (!first.empty()) {
        EXPECT_EQ(Bytes(got[i]), Bytes(first[i]));
      }
    }
    if (first.empty()) first = got;
  });
}

INSTANTIATE_TEST_SUITE_P(Fuzz, FlashShapes, testing::ValuesIn(Cases()));

// Plain kernels can finish what flash kernels began: they save the same.
TEST_F(FlashAttention, BackwardDoesNotDependOnWhatMadeForward) {
  const auto gradient = [](AttentionKernels forward, AttentionKernels backward) {
    Tensor x = Values({1, 90, 3 * 64}, 1).To(DType::kBF16).To(kGpu).SetRequiresGrad();
    Tensor y;
    {
      const AttentionKernelsScope scope(forward);
      y = ops::CausalAttention(x, 1);
    }
    const AttentionKernelsScope scope(backward);
    Backward(y, Values(y.shape(), 2, 1).To(DType::kBF16).To(kGpu));
    return x.grad().To(kCpu);
  };
  const Tensor plain = gradient(AttentionKernels::kPlain, AttentionKernels::kPlain);
  EXPECT_LT(Compare(gradient(AttentionKernels::kFlash, AttentionKernels::kPlain), plain).rms, 4e-3);
  EXPECT_LT(Compare(gradient(AttentionKernels::kPlain, AttentionKernels::kFlash), plain).rms, 4e-3);
}

// Alignment does not change the arithmetic.
TEST_F(FlashAttention, BitsDoNotDependOnAlignment) {
  const auto run = [](int64_t offset) {
    const Tensor values = Values({2, 40, 3 * 64}, 1).To(DType::kBF16);
    const Tensor memory = Tensor::Zeros({values.numel() + offset}, DType::kBF16, kGpu);
    Tensor x = Tensor::FromStorage(memory.storage(), DType::kBF16, values.shape(), offset);
    x.CopyFrom(values);
    x.SetRequiresGrad();
    const Tensor bucket = Tensor::Zeros({values.numel() + offset}, DType::kBF16, kGpu);
    x.autograd()->leaf->SetDestination(
        Tensor::FromStorage(bucket.storage(), DType::kBF16, values.shape(), offset));
    for (int i = 0; i < 2; ++i) {  // the second time it adds
      const Tensor y = ops::CausalAttention(x, 1);
      Backward(y, Values(y.shape(), 2, 1).To(DType::kBF16).To(kGpu));
    }
    return Bytes(x.grad().To(kCpu));
  };
  EXPECT_EQ(run(0), run(1));
}

// Scores around 1000: only a shift by the largest keeps their exponentials finite.
TEST_F(FlashAttention, LargeScoresDoNotOverflow) {
  const Tensor x = Tensor::Full({1, 70, 3 * 64}, 11, DType::kBF16, kGpu);
  const AttentionKernelsScope scope(AttentionKernels::kFlash);
  for (const double v : Doubles(ops::CausalAttention(x, 1).To(kCpu))) EXPECT_EQ(v, 11);
}

TEST_F(FlashAttention, IsChosenWhereItExists) {
  const auto uses = [](const Shape& shape, DType dtype) {
    return cuda::ChooseAttentionKernels(cuda::CurrentAttentionKernels(),
                                        Tensor::Empty(shape, dtype, kMeta), false,
                                        [] { return "none in this test"; })
               .kernels == AttentionKernels::kFlash;
  };
  EXPECT_TRUE(uses({1, 5, 2, 64}, DType::kBF16));
  EXPECT_TRUE(uses({1, 5, 2, 128}, DType::kBF16));
  EXPECT_TRUE(uses({1, 5, 2, 64}, DType::kF16));
  EXPECT_TRUE(uses({1, 5, 2, 8}, DType::kBF16));
  EXPECT_FALSE(uses({1, 5, 2, 60}, DType::kBF16));
  EXPECT_FALSE(uses({1, 5, 2, 136}, DType::kBF16));
  EXPECT_FALSE(uses({1, 5, 2, 64}, DType::kF32));
  {
    const AttentionKernelsScope plain(AttentionKernels::kPlain);
    EXPECT_FALSE(uses({1, 5, 2, 64}, DType::kBF16));
    const AttentionKernelsScope flash(AttentionKernels::kFlash);
    EXPECT_TRUE(uses({1, 5, 2, 64}, DType::kBF16));
    try {
      uses({1, 5, 2, 64}, DType::kF32);
      ADD_FAILURE() << "no error";
    } catch (const ArgumentError& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("takes 16-bit heads of a multiple of 8 up to 128 "
                                     "numbers, got f32[1, 5, 2, 64]"));
    }
  }
}

// Nor is the choice made again: its calls allocate what the kernel's launch does.
TEST_F(FlashAttention, ChoosingCostsNoMemory) {
  const Stream stream = CurrentStream(kGpu);
  const auto values = [](uint64_t i) {
    return Values({2, 64, 2, 64}, i).To(DType::kBF16).To(kGpu);
  };
  AttentionBackwardArgs b{.q = values(0), .k = values(1), .v = values(2)};
  b.scores.scale = 0.125;
  b.y = Tensor::EmptyLike(b.q);
  b.log_sum_exp = Tensor::Empty({2, 2, 64}, DType::kF32, kGpu);
  b.dy = values(3);
  for (Tensor* x : {&b.dq, &b.dk, &b.dv}) *x = Tensor::EmptyLike(b.q);
  const AttentionForwardArgs f{b.q, b.k, b.v, b.scores, {}, b.y, b.log_sum_exp};
  const auto least = [](const auto& call) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < 10; ++i) {
      const int64_t before = allocations;
      call();
      least = std::min(least, allocations - before);
    }
    return least;
  };
  EXPECT_EQ(least([&] { attention_forward(stream, f); }),
            least([&] { cuda::FlashAttentionForward(stream, f); }));
  EXPECT_EQ(least([&] { attention_backward(stream, b); }),
            least([&] { cuda::FlashAttentionBackward(stream, b); }));
}

TEST_F(FlashAttention, TilesForLessSharedMemoryGiveTheSameBits) {
  if (!test::ContainsSimulator()) GTEST_SKIP() << "a GPU has the memory that it has";
  const AttentionKernelsScope plain(AttentionKernels::kPlain);
  for (const int64_t d : {72, 128, 200, 256}) {
    for (const int64_t window : {0, 40}) {
      const Case c{.batch = 2,
                   .length = 110,
                   .groups = 2,
                   .heads_of_group = 2,
                   .d = d,
                   .dropout = 0.2,
                   .window = window};
      const auto on = [&](int capability) {
        const test::Capability scope(capability);
        return Compute(c, DType::kF32, kGpu);
      };
      const std::vector<Tensor> roomy = on(90), tight = on(89);
      for (size_t i = 0; i < roomy.size(); ++i) {
        EXPECT_EQ(roomy[i].ToVector<float>(), tight[i].ToVector<float>())
            << c.Describe() << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
