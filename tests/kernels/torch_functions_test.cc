// Lockstep's functions against torch's, in f64 and f32: values, dtypes, shapes and gradients of
// every case that tests/peers/make_torch_functions.py made; and where they differ on purpose,
// kernels/torch_differences.md. LOCKSTEP_TORCH_FUNCTIONS names another file of cases.
#include "tests/kernels/torch_functions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "lockstep/lockstep.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::MessageOf;
using test::TorchCall;
using test::TorchFunctions;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<double> Doubles(const Tensor& x) {
  return x.Detach().To(DType::kF64).ToVector<double>();
}

// What is wrong with `got`, in place of torch's result, or "".
//
// Both sum up to some hundred products of numbers of about 1, in different orders, and functions
// are good to a few units in the last place: so up to 64 of those of the element, of its neighbours
// (from which an element may be a difference), and of 1. In f32 the inputs are the same numbers.
// `exact`: nothing is summed, so up to 16 units in the last place of the element alone.
std::string Mismatch(const Tensor& got, const Tensor& want, DType dtype, const std::string& what,
                     bool exact = false) {
  const DType want_dtype = IsFloating(want.dtype()) ? dtype : want.dtype();
  if (got.dtype() != want_dtype || !(got.shape() == want.shape())) {
    return StrCat(what, " is ", got.Describe(), " instead of ", want_dtype, want.shape());
  }
  const double unit = dtype == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                           : std::numeric_limits<float>::epsilon();
  const std::vector<double> a = Doubles(got), b = Doubles(want);
  double squares = 0;
  for (const double w : b) squares += std::isfinite(w) ? w * w : 0;
  const double rms = std::sqrt(squares / std::max<double>(1, static_cast<double>(b.size())));
  for (size_t i = 0; i < b.size(); ++i) {
    const double size = std::abs(b[i]);
    const double bound = exact ? 16 * unit * size : 64 * unit * (size + rms + 1);
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const bool close = std::isfinite(size) && std::abs(a[i] - b[i]) <= bound;
    if (!close || !IsFloating(want.dtype())) {
      return StrCat(what, "[", i, "] is ", a[i], " instead of ", b[i], ", in ", got.dtype(),
                    got.shape());
    }
  }
  return "";
}

Tensor WithViews(Tensor x, const Json& views) {
  for (const Json& view : views) {
    const auto kind = view.at(0).get<std::string>();
    std::vector<int64_t> n;
    for (size_t i = 1; i < view.size(); ++i) n.push_back(view[i].get<int64_t>());
    if (kind == "transpose") {
      x = x.Transpose(static_cast<int>(n.at(0)), static_cast<int>(n.at(1)));
    } else if (kind == "permute") {
      x = x.Permute(std::vector<int>(n.begin(), n.end()));
    } else if (kind == "expand") {
      x = x.Expand(Shape(std::span<const int64_t>(n)));
    } else {
      LS_CHECK(kind == "slice", "there is no view ", kind);
      x = x.Slice(static_cast<int>(n.at(0)), n.at(1), n.at(2));
    }
  }
  return x;
}

// The gradient that torch's results had.
Tensor Weights(const Tensor& like, size_t output) {
  std::vector<double> w(static_cast<size_t>(like.numel()));
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] = (static_cast<double>((7 * i + 3 * output) % 11) - 5) / 4 + 0.125;
  }
  return Tensor::FromVector(w, like.shape()).To(like.dtype());
}

struct Outcome {
  std::vector<Tensor> results;
  std::vector<Tensor> gradients;  // of the base tensors; undefined where none is wanted
};

class TorchFunctionsTest : public testing::Test {
 protected:
  static std::string Path() {
    const char* other = std::getenv("LOCKSTEP_TORCH_FUNCTIONS");
    return other != nullptr ? other : "tests/kernels/testdata/torch_functions.safetensors";
  }

  Tensor Stored(size_t number, const char* what, size_t i) const {
    return file_.Get(StrCat(number, ".", what, ".", i)).ToTensor();
  }

  Outcome Run(size_t number, DType dtype) const {
    const Json& one = cases_.at(number);
    std::vector<Tensor> bases, inputs;
    for (const Json& input : one.at("inputs")) {
      Tensor base = Stored(number, "in", bases.size());
      if (IsFloating(base.dtype())) base = base.To(dtype);
      if (input.at("grad").get<bool>()) base.SetRequiresGrad();
      bases.push_back(base);
      inputs.push_back(WithViews(base, input.at("views")));
    }
    Outcome out;
    out.results = TorchFunctions().at(one.at("function"))({inputs, one.at("args"), dtype});
    std::vector<Tensor> roots, weights;
    for (size_t i = 0; i < out.results.size(); ++i) {
      if (!out.results[i].requires_grad()) continue;
      roots.push_back(out.results[i]);
      weights.push_back(Weights(out.results[i], i));
    }
    if (!roots.empty()) Backward(roots, weights);
    for (const Tensor& base : bases) {
      if (!base.requires_grad()) {
        out.gradients.emplace_back();
      } else {
        const Tensor grad = base.grad();
        out.gradients.push_back(grad.defined() ? grad : Tensor::Zeros(base.shape(), base.dtype()));
      }
    }
    return out;
  }

  // What differs from torch, or "".
  std::string Compare(size_t number, DType dtype) const {
    const Outcome out = Run(number, dtype);
    const auto results = cases_.at(number).at("outputs").get<size_t>();
    if (out.results.size() != results) {
      return StrCat(out.results.size(), " results instead of ", results);
    }
    for (size_t i = 0; i < results; ++i) {
      const std::string wrong = Mismatch(out.results[i], Stored(number, "out", i), dtype,
                                         StrCat("result ", i), Flag(number, "exact"));
      if (!wrong.empty()) return wrong;
    }
    for (size_t i = 0; i < out.gradients.size(); ++i) {
      if (!out.gradients[i].defined()) continue;
      const std::string wrong = Mismatch(out.gradients[i], Stored(number, "grad", i), dtype,
                                         StrCat("gradient of input ", i));
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

  // Which call a case is, for messages.
  std::string Describe(size_t number) const {
    const Json& one = cases_.at(number);
    std::string inputs;
    for (size_t i = 0; i < one.at("inputs").size(); ++i) {
      const Tensor base = Stored(number, "in", i);
      inputs += StrCat("\n  ", base.numel() <= 40 ? ToString(base) : base.Describe(), " ",
                       (one.at("inputs")[i].at("views")).dump());
    }
    return StrCat("case ", number, ": ", one.at("function").get<std::string>(), " ",
                  one.at("args").dump(), inputs);
  }

  bool IsDifference(size_t number) const { return cases_.at(number).contains("difference"); }
  bool Flag(size_t number, const char* key) const { return cases_.at(number).value(key, false); }

  const SafetensorsFile file_ = SafetensorsFile::Open(Path());
  const Json cases_ = ParseJson(file_.metadata().at("table"), Path()).at("cases");
};

TEST_F(TorchFunctionsTest, EveryCaseIsAsInTorch) {
  for (size_t i = 0; i < cases_.size(); ++i) {
    if (IsDifference(i)) continue;
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      std::string wrong;
      const std::string thrown = MessageOf<std::exception>([&] { wrong = Compare(i, dtype); });
      EXPECT_EQ(thrown, "no error") << Describe(i);
      EXPECT_EQ(wrong, "") << Describe(i);
    }
  }
}

TEST_F(TorchFunctionsTest, EveryFunctionHasCasesAndEveryCaseAFunction) {
  std::set<std::string> in_cases, in_table;
  for (size_t i = 0; i < cases_.size(); ++i) {
    if (!IsDifference(i)) in_cases.insert(cases_[i].at("function").get<std::string>());
  }
  for (const auto& [name, function] : TorchFunctions()) in_table.insert(name);
  EXPECT_EQ(in_cases, in_table);
  EXPECT_GE(in_table.size(), 60u);
}

// A row of kernels/torch_differences.md: what Lockstep does with the case of that title.
struct Difference {
  const char* title;
  const char* error;             // part of it; "": none, but
  std::vector<double> result;    // the first one
  std::vector<double> gradient;  // of the last floating input; empty: not compared
};

const std::vector<Difference>& Differences() {
  static const std::vector<Difference> rows = {
      {"TopK of integers", "floating", {}, {}},
      {"Exp of integers", "floating", {}, {}},
      {"Two dtypes", "dtype", {}, {}},
      {"Integers beside a fraction", "1.5", {}, {}},
      {"Logic on numbers", "bool", {}, {}},
      {"Mean of nothing", "mean", {}, {}},
      {"Mean loss of nothing", "mean", {}, {}},
      {"Only ignored targets", "", {0}, {0, 0}},
      {"Var of too few", "correction", {}, {}},
      {"Gradient of equal extremes", "", {2}, {-1.125, 0, 0}},
      {"Gradient of equal norms", "", {2}, {-1.125, 0, 0}},
      {"Gradient of several NaNs in a pool", "", {kNan}, {-1.125, 0}},
      {"Gradient of Maximum beside NaN", "", {kNan, kNan}, {0, 0}},
      {"Gradient of Maximum at its number", "", {1, 2}, {-1.125, 0.625}},
      {"Gradient of Clamp at its limits", "", {-1, 0, 1}, {-1.125, 0.625, -0.375}},
      {"Gradient of Clamp at NaN", "", {kNan, 0}, {-1.125, 0.625}},
      {"Gradient of Abs at NaN", "", {kNan}, {kNan}},
      {"Gradient of Rsqrt at -0", "", {-kInf}, {kInf}},
      {"Gradient of LeakyRelu at NaN", "", {kNan}, {-1.125}},
      {"Gradient of Prod at infinity", "", {kNan}, {0, 0, -kInf}},
      {"Gradient of LogSumExp of -infinity", "", {-kInf}, {0, 0}},
      {"Gradient of L1Loss at NaN", "", {kNan}, {kNan}},
      {"Sign of NaN", "", {kNan}, {}},
      {"Pow of -infinity", "", {0}, {}},
      {"Clamp between crossed limits", "clamp", {}, {}},
      {"Softplus of large numbers", "", {21 + std::log1p(std::exp(-21))}, {}},
      {"Norms for other p", "norm", {}, {}},
      {"Scatter to one place", "", {2, 0}, {0, -1.125}},
      {"Gather of a part", "shape", {}, {}},
      {"Scatter of a part", "shape", {}, {}},
      {"Pad that cuts", "pad", {}, {}},
      {"Uneven Chunk", "does not divide", {}, {}},
      {"Squeeze of a larger size", "size", {}, {}},
      // softmax([1, 2]) . [1, 3]
      {"Causal queries fewer than keys", "", {1 + 2 / (1 + std::exp(-1))}, {}},
      {"GELU's default",
       "",
       {0.5 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * 1.044715))},
       {}},
      {"Ignored index's default", "-100", {}, {}},
      {"RmsNorm's default eps", "", {1 / std::sqrt(1 + 1e-5 * 512 * 512)}, {}},
  };
  return rows;
}

TEST_F(TorchFunctionsTest, DiffersWhereThePageSaysSo) {
  std::set<std::string> in_cases, in_rows, on_page;
  for (const Difference& row : Differences()) in_rows.insert(row.title);
  for (size_t i = 0; i < cases_.size(); ++i) {
    if (!IsDifference(i)) continue;
    const auto title = cases_[i].at("difference").get<std::string>();
    SCOPED_TRACE(title);
    in_cases.insert(title);
    for (const Difference& row : Differences()) {
      if (row.title != title) continue;
      Outcome out;
      const std::string thrown = MessageOf<Error>([&] { out = Run(i, DType::kF64); });
      if (*row.error != '\0') {
        EXPECT_NE(thrown.find(row.error), std::string::npos) << thrown;
        continue;
      }
      ASSERT_EQ(thrown, "no error");
      EXPECT_NE(Compare(i, DType::kF64), "");
      const auto same = [](const Tensor& got, const std::vector<double>& want) {
        return Mismatch(got.View({-1}),
                        Tensor::FromVector(want, {static_cast<int64_t>(want.size())}), DType::kF64,
                        "it");
      };
      EXPECT_EQ(same(out.results.at(0), row.result), "");
      if (row.gradient.empty()) continue;
      std::erase_if(out.gradients, [](const Tensor& grad) { return !grad.defined(); });
      EXPECT_EQ(same(out.gradients.back(), row.gradient), "");
    }
  }
  const std::string page = ReadFile("kernels/torch_differences.md");
  for (size_t at = page.find("\n| **"); at != std::string::npos; at = page.find("\n| **", at + 1)) {
    const size_t begin = at + 5;
    on_page.insert(page.substr(begin, page.find("**", begin) - begin));
  }
  EXPECT_EQ(in_cases, in_rows);
  EXPECT_EQ(on_page, in_rows);
}

}  // namespace
}  // namespace lockstep
