// The checks must find broken ops: each test breaks one thing and expects the corresponding check
// to report it.
#include "tests/op_check.h"

#include <gmock/gmock-matchers.h>

#include <cmath>

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// What is wrong with Square().
struct Faults {
  bool forward = false;               // y[0] is off by 1e-9
  bool nan = false;                   // y[0] is NaN
  bool skips_element = false;         // y[last] is not written
  bool gradient = false;              // dx = x dy
  bool small_gradient_error = false;  // dx[0] is 1e-4 too large
  bool forgets_to_accumulate = false;
  bool writes_beyond = false;  // one element after dx
  bool writes_input = false;
  bool unsafe_save = false;  // of an input, without a version check
  bool differs_each_time = false;
  bool computes_on_meta = false;
  bool throws_nothing = false;
  bool f32_gradient = false;         // dx[0] is off, but right in f64
  bool wrong_off_alignment = false;  // y[0] is off where x is not aligned to 16 bytes
  bool unneeded = false;  // the bits of dx depend on whether the other input needs a gradient
};

// y = x^2 + z.
class SquareNode : public Node {
 public:
  SquareNode(const Tensor& x, const Faults& faults)
      : Node("square"), x_(Save(x, "x of square")), raw_(x), faults_(faults) {}

  void Backward(Gradients& grads) override {
    if (grads.needs(1)) grads.Put(1, grads[0]);
    if (!grads.needs(0)) return;
    const Tensor x = faults_.unsafe_save ? raw_ : x_.Unpack();
    const GradTarget dx = grads.Open(0);
    if (x.device().is_meta()) return;
    const double factor = faults_.gradient ? 1 : 2;
    const double add = faults_.unneeded && !grads.needs(1) ? 1e-3 : 0;
    const bool accumulate = dx.accumulate && !faults_.forgets_to_accumulate;
    auto compute = [&]<class T>(const T* in, const T* dy, T* out) {
      for (int64_t i = 0; i < x.numel(); ++i) {
        out[i] = (accumulate ? out[i] : T(0)) + T(factor * in[i] * dy[i] + add);
      }
      if (x.numel() == 0) return;
      if (faults_.small_gradient_error) out[0] += T(1e-4);
      if (faults_.f32_gradient && sizeof(T) == 4) out[0] += T(1e-3);
      // Only if the memory after it belongs to something else.
      if (faults_.writes_beyond && dx.tensor.storage().is_slice()) out[x.numel()] = 1;
    };
    if (x.dtype() == DType::kF64) {
      compute(x.data<double>(), grads[0].data<double>(), dx.tensor.data<double>());
    } else {
      compute(x.data<float>(), grads[0].data<float>(), dx.tensor.data<float>());
    }
  }

 private:
  const SavedTensor& x_;
  Tensor raw_;
  Faults faults_;
};

Tensor Square(const Tensor& in, const Tensor& z, const Faults& faults) {
  const Tensor x = in.Detach().Contiguous();
  LS_CHECK(faults.throws_nothing || x.ndim() > 0, "square: x must not be a scalar");
  Tensor y = Tensor::EmptyLike(x);
  if (!x.device().is_meta()) {
    auto compute = [&]<class T>(T* from, T* to) {
      static int calls = 0;
      const RefTensor add = ToRef(z);
      const int64_t n = x.numel() - (faults.skips_element ? 1 : 0);
      for (int64_t i = 0; i < n; ++i) to[i] = from[i] * from[i] + T(add.data[i]);
      if (n > 0 && faults.forward) to[0] += T(1e-9);
      if (n > 0 && faults.differs_each_time) to[0] += T(1e-5 * ++calls);
      if (n > 0 && faults.nan) to[0] = T(NAN);
      if (n > 0 && faults.wrong_off_alignment && reinterpret_cast<uintptr_t>(from) % 16 != 0) {
        to[0] += T(1);
      }
      if (n > 0 && faults.writes_input) from[0] = 0;
    };
    if (x.dtype() == DType::kF64) {
      compute(x.data<double>(), y.data<double>());
    } else {
      compute(x.data<float>(), y.data<float>());
    }
  } else if (faults.computes_on_meta) {
    Tensor::Empty({3}, DType::kF32);
  }
  if (NeedsGrad({&in, &z})) Record(std::make_shared<SquareNode>(x, faults), {&in, &z}, {&y});
  return y;
}

OpSample Sample(const Faults& faults, const InputSpec& x = {.shape = {3, 5}, .low = 0.5}) {
  InputSpec z = x;
  z.non_contiguous = false;
  return {.name = "sample",
          .inputs = {x, z},
          .run = [faults](TensorSpan in) { return std::vector{Square(in[0], in[1], faults)}; },
          .reference =
              [](RefSpan in) {
                RefTensor y = in[0];
                for (size_t i = 0; i < y.data.size(); ++i) {
                  y.data[i] = in[0].data[i] * in[0].data[i] + in[1].data[i];
                }
                return y;
              }};
}

OpCase Case(const Faults& faults = {}) {
  OpCase c;
  c.name = "square";
  c.dtypes = {DType::kF64, DType::kF32};
  c.samples = [faults] {
    std::vector<OpSample> s = {Sample(faults), Sample(faults, {.shape = {0}}),
                               Sample(faults, {.shape = {2, 3}, .non_contiguous = true})};
    s[1].name = "empty";
    s[2].name = "transposed";
    return s;
  };
  c.errors = [faults] {
    return std::vector<ErrorSample>{
        {"scalar", [faults](Device d) { Square(Tensor::Zeros({}, DType::kF32, d), {}, faults); },
         "x must not be a scalar"}};
  };
  return c;
}

// All checks of one sample in one dtype; the first error, or "".
std::string FirstError(const Faults& faults, DType dtype = DType::kF64) {
  const OpCase c = Case(faults);
  const OpSample s = Sample(faults);
  for (const check::Result& r :
       {check::Declaration(c), check::Forward(c, s, dtype, kCpu),
        check::Determinism(c, s, dtype, kCpu), check::Meta(c, s, dtype),
        check::Accumulation(c, s, dtype, kCpu), check::Subsets(c, s, dtype, kCpu),
        check::Overwriting(c, s, dtype, kCpu), check::FiniteDifferences(c, s, kCpu),
        check::Gradient(c, s, DType::kF32, kCpu), check::ErrorMessage(c.errors()[0], kCpu)}) {
    if (!r.passed()) return r.error;
  }
  return "";
}

TEST(OpCheckTest, PassesACorrectOp) {
  EXPECT_EQ(FirstError({}), "");
  EXPECT_EQ(FirstError({}, DType::kF32), "");
}

TEST(OpCheckTest, AllMakesEveryCheckAndNamesThoseThatFailed) {
  const OpCase correct = Case();
  const check::Result passed = check::All(correct, kCpu);
  EXPECT_EQ(passed.error, "");
  EXPECT_GT(passed.compared, 100);
  EXPECT_GT(passed.max_relative, 0);
  // What is wrong in f32 only: neither the f64 checks nor the declaration fail.
  EXPECT_EQ(check::All(Case({.f32_gradient = true}), kCpu).error.substr(0, 28),
            "square.Gradient/sample/f32: ");
  // Each of these breaks what another check is for.
  const std::pair<Faults, const char*> broken[] = {
      {{.forward = true}, "square.Forward/sample/f64: "},
      {{.gradient = true}, "square.FiniteDifferences/sample: "},
      {{.forgets_to_accumulate = true}, "square.Accumulation/transposed/f64: "},
      {{.unneeded = true}, "square.Subsets/sample/f64: "},
      {{.unsafe_save = true}, "square.Overwriting/sample/f64: "},
      {{.writes_input = true}, "square.Determinism/sample/f64: "},
      {{.computes_on_meta = true}, "square.Meta/sample/f64: "},
      {{.throws_nothing = true}, "square.Error/scalar: "}};
  for (const auto& [faults, message] : broken) {
    EXPECT_THAT(check::All(Case(faults), kCpu).error, HasSubstr(message));
  }
}

TEST(OpCheckTest, FindsWrongResults) {
  EXPECT_THAT(FirstError({.forward = true}), HasSubstr("output 0: 1 of 15 elements differ"));
  EXPECT_THAT(FirstError({.nan = true}), HasSubstr("got nan"));
}

TEST(OpCheckTest, FindsAnElementThatIsNotWritten) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(FirstError({.skips_element = true}), HasSubstr("first element 14"));
  }
}

TEST(OpCheckTest, FindsWrongGradients) {
  const OpCase c = Case();
  for (const Faults& f : {Faults{.gradient = true}, Faults{.small_gradient_error = true}}) {
    EXPECT_THAT(check::FiniteDifferences(c, Sample(f), kCpu).error,
                HasSubstr("gradient 0 against differences of the op"));
  }
  // A large input, where only some elements and random directions are checked.
  const OpSample large = Sample({.small_gradient_error = true}, {.shape = {40, 50}});
  EXPECT_FALSE(check::FiniteDifferences(c, large, kCpu).passed());
  EXPECT_TRUE(check::FiniteDifferences(c, Sample({}, {.shape = {40, 50}}), kCpu).passed());
}

TEST(OpCheckTest, FindsGradientsThatOverwriteOrOverrun) {
  EXPECT_THAT(FirstError({.forgets_to_accumulate = true}), HasSubstr("added to an earlier one"));
  const Faults beyond{.writes_beyond = true};
  EXPECT_THAT(check::Accumulation(Case(), Sample(beyond), DType::kF64, kCpu).error,
              HasSubstr("written outside its destination"));
}

TEST(OpCheckTest, FindsGradientsThatDependOnWhichInputsNeedThem) {
  EXPECT_THAT(FirstError({.unneeded = true}), HasSubstr("gradient 0 with a gradient for input 0"));
}

TEST(OpCheckTest, FindsChangedInputsAndUncheckedSaves) {
  EXPECT_THAT(check::Determinism(Case(), Sample({.writes_input = true}), DType::kF64, kCpu).error,
              HasSubstr("input 0 afterwards"));
  EXPECT_THAT(FirstError({.unsafe_save = true}), HasSubstr("after writing to input 0 unseen"));
}

TEST(OpCheckTest, FindsResultsThatDifferFromRunToRun) {
  EXPECT_THAT(
      check::Determinism(Case(), Sample({.differs_each_time = true}), DType::kF64, kCpu).error,
      HasSubstr("output 0 the second time differs in bits"));
}

// On the CPU all thread orders are the same: this tests only what is compared.
TEST(OpCheckTest, OrdersComparesValuesGradientsBitsAndInputs) {
  const auto error = [](const Faults& faults) {
    return check::Orders(Case(), Sample(faults), DType::kF32, kCpu).error;
  };
  EXPECT_EQ(error({}), "");
  EXPECT_THAT(error({.nan = true}), HasSubstr("got nan"));
  EXPECT_THAT(error({.skips_element = true}), HasSubstr("first element 14"));
  EXPECT_THAT(error({.f32_gradient = true}), HasSubstr("gradient 0: 1 of 15"));
  EXPECT_THAT(error({.writes_input = true}), HasSubstr("input 0 afterwards"));
  OpCase loose = Case();
  loose.tolerances[DType::kF32] = {1, 1, "so that only bits can fail"};
  EXPECT_THAT(check::Orders(loose, Sample({.differs_each_time = true}), DType::kF32, kCpu).error,
              HasSubstr("output 0 beside the first order differs in bits"));
}

TEST(OpCheckTest, OrdersHashesTheBitsOfResultsAndGradients) {
  const auto hash = [](const Faults& faults) {
    return check::Orders(Case(), Sample(faults), DType::kF32, kCpu).hash;
  };
  const std::optional<uint64_t> right = hash({});
  ASSERT_TRUE(right);
  EXPECT_EQ(hash({}), right);
  EXPECT_NE(hash({.nan = true}), right);
  EXPECT_NE(hash({.f32_gradient = true}), right);
  EXPECT_FALSE(check::Forward(Case(), Sample({}), DType::kF32, kCpu).hash);
}

TEST(OpCheckTest, UnalignedFindsWhatDependsOnAlignment) {
  const auto error = [](const Faults& faults) {
    return check::Unaligned(Case(), Sample(faults, {.shape = {3, 5}, .low = 0.5}), DType::kF32,
                            kCpu)
        .error;
  };
  EXPECT_EQ(error({}), "");
  EXPECT_THAT(error({.wrong_off_alignment = true}), HasSubstr("output 0: 1 of 15 elements differ"));
  EXPECT_EQ(FirstError({.wrong_off_alignment = true}, DType::kF32), "");
}

TEST(OpCheckTest, FindsMemoryTakenOnTheMetaDevice) {
  EXPECT_THAT(FirstError({.computes_on_meta = true}), HasSubstr("allocated memory 1 times"));
}

TEST(OpCheckTest, FindsMissingErrors) {
  EXPECT_THAT(FirstError({.throws_nothing = true}), HasSubstr("x must not be a scalar"));
}

TEST(OpCheckTest, LooseTolerancesMustSayWhy) {
  OpCase c = Case();
  EXPECT_EQ(check::Declaration(c).error, "");
  c.tolerances[DType::kF32] = {1e-5, 2e-5, ""};
  EXPECT_THAT(check::Declaration(c).error, HasSubstr("looser than its ceiling"));
  c.tolerances[DType::kF32].why = "the reference rounds differently";
  EXPECT_EQ(check::Declaration(c).error, "");
  c.gradient_tolerances[DType::kF32] = {3e-5, 0, ""};
  EXPECT_THAT(check::Declaration(c).error, HasSubstr("the gradient tolerance of f32"));
}

TEST(OpCheckTest, SamplesMustCoverEmptyAndStridedInputs) {
  OpCase c = Case();
  c.samples = [] { return std::vector{Sample({})}; };
  EXPECT_THAT(check::Declaration(c).error, HasSubstr("no sample with an empty input"));
  c.samples = [] { return std::vector{Sample({}), Sample({})}; };
  EXPECT_THAT(check::Declaration(c).error, HasSubstr("two samples are named sample"));
}

// A case's tolerance is relative to the values, so that small values do not hide errors.
TEST(OpCheckTest, ToleranceScalesWithTheValues) {
  const InputSpec tiny{.shape = {3, 5}, .low = 0.5e-2, .high = 1e-2};
  EXPECT_TRUE(check::Forward(Case(), Sample({}, tiny), DType::kF32, kCpu).passed());
  OpSample off = Sample({}, tiny);
  off.run = [](TensorSpan in) {
    const Tensor y = Square(in[0], in[1], {}).Detach();
    if (y.dtype() == DType::kF32) y.data<float>()[0] *= 1.0001f;
    return y;
  };
  EXPECT_FALSE(check::Forward(Case(), off, DType::kF32, kCpu).passed());
}

}  // namespace
}  // namespace lockstep
