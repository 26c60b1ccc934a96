#include "tests/op_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "core/philox.h"
#include "tests/op_check_run.h"

namespace lockstep::check {

bool HasGradient(const OpCase& c, const OpSample& s) {
  const std::vector<bool> needs = AllNeeds(s);
  return c.differentiable && std::find(needs.begin(), needs.end(), true) != needs.end();
}

std::vector<DType> DTypesOn(const OpCase& c, Device device) {
  std::vector<DType> dtypes = c.dtypes;
  if (device.is_cuda()) std::erase(dtypes, DType::kF64);
  return dtypes;
}

// ---- Declaration and errors ----

namespace {

void CheckTolerances(Result& result, const std::map<DType, Tolerance>& declared, double factor,
                     const char* what) {
  for (const auto& [dtype, t] : declared) {
    const Tolerance ceiling = DefaultTolerance(dtype);
    const bool valid = t.relative >= 0 && t.absolute >= 0;
    const bool looser =
        t.relative > factor * ceiling.relative || t.absolute > factor * ceiling.absolute;
    if (!valid)
      Fail(result, StrCat("the ", what, " tolerance of ", dtype, " is not a number >= 0"));
    if (looser && t.why.empty()) {
      Fail(result, StrCat("the ", what, " tolerance of ", dtype, " (", t.relative, ", ", t.absolute,
                          ") is looser than its ceiling (", factor * ceiling.relative,
                          ") without saying why"));
    }
  }
}

}  // namespace

Result Declaration(const OpCase& c) {
  return Guarded([&](Result& result) {
    CheckTolerances(result, c.tolerances, 1, "forward");
    CheckTolerances(result, c.gradient_tolerances, 2, "gradient");
    std::set<std::string> names;
    bool empty = false, strided = false, gradient = false;
    for (const OpSample& s : c.samples()) {
      if (!names.insert(s.name).second) Fail(result, StrCat("two samples are named ", s.name));
      if (!s.run) Fail(result, StrCat("sample ", s.name, " has no run"));
      if (s.benchmark) continue;
      if (!s.reference) Fail(result, StrCat("sample ", s.name, " has no reference"));
      gradient = gradient || HasGradient(c, s);
      for (const InputSpec& spec : s.inputs) {
        empty = empty || spec.shape.numel() == 0;
        strided = strided || spec.non_contiguous;
      }
    }
    for (const ErrorSample& e : c.errors ? c.errors() : std::vector<ErrorSample>{}) {
      if (e.message.empty()) Fail(result, StrCat("error sample ", e.name, " expects no message"));
      empty = empty || e.name.find("empty") != std::string::npos;
      strided = strided || e.name.find("contiguous") != std::string::npos;
    }
    if (!empty) Fail(result, "there is no sample with an empty input, nor an error sample 'empty'");
    if (!strided) {
      Fail(result,
           "there is no sample with a non_contiguous input, nor an error sample 'non_contiguous'");
    }
    if (c.differentiable && !gradient) Fail(result, "no sample has an input with a gradient");
    if (c.differentiable && std::count(c.dtypes.begin(), c.dtypes.end(), DType::kF64) == 0) {
      Fail(result, "a differentiable op needs f64, for the gradient check");
    }
  });
}

Result ErrorMessage(const ErrorSample& sample, Device device) {
  Result result;
  std::string message = sample.message;
  const std::string cpu = " on cpu", there = StrCat(" on ", device);
  for (size_t at = 0; (at = message.find(cpu, at)) != std::string::npos; at += there.size()) {
    message.replace(at, cpu.size(), there);
  }
  try {
    sample.run(device);
    Fail(result, StrCat("threw nothing; expected an Error with: ", message));
  } catch (const Error& error) {
    if (std::string(error.what()).find(message) == std::string::npos) {
      Fail(result, StrCat("the error says: ", error.what(), "\nnot: ", message));
    }
  } catch (const std::exception& error) {
    Fail(result, StrCat("threw something other than an Error: ", error.what()));
  }
  return result;
}

// ---- Values ----

Result Forward(const OpCase& c, const OpSample& s, DType dtype, Device device) {
  return Guarded([&](Result& result) {
    const std::vector<RefTensor> values = Values(s, dtype);
    const Run run = RunAll(s, values, std::vector<bool>(values.size()), dtype, device);
    CompareOutputs(result, c, dtype, run, s.reference(values));
  });
}

Result Gradient(const OpCase& c, const OpSample& s, DType dtype, Device device) {
  return Guarded([&](Result& result) {
    const std::vector<RefTensor> values = Values(s, dtype);
    const std::vector<bool> needs = AllNeeds(s);
    const Run want = RunAll(s, values, needs, DType::kF64, kCpu);
    CompareGradients(result, c, dtype, RunAll(s, values, needs, dtype, device), want);
  });
}

// ---- Finite differences ----

namespace {

using Function = std::function<std::vector<RefTensor>(const std::vector<RefTensor>&)>;

// The derivative of sum_k <weights[k], f(x)[k]> along `direction` of input `index`, by the
// five-point stencil. Outputs are subtracted element by element, so that unchanged ones add no
// rounding error.
double Derivative(const Function& f, const std::vector<RefTensor>& x, size_t index,
                  const std::vector<double>& direction, double h,
                  const std::vector<RefTensor>& weights) {
  auto at = [&](double step) {
    std::vector<RefTensor> moved = x;
    for (size_t i = 0; i < direction.size(); ++i) moved[index].data[i] += step * direction[i];
    return f(moved);
  };
  const auto p1 = at(h), m1 = at(-h), p2 = at(2 * h), m2 = at(-2 * h);
  double sum = 0;
  for (size_t k = 0; k < weights.size(); ++k) {
    for (size_t i = 0; i < weights[k].data.size(); ++i) {
      const double d = 8 * (p1[k].data[i] - m1[k].data[i]) - (p2[k].data[i] - m2[k].data[i]);
      sum += weights[k].data[i] * d;
    }
  }
  return sum / (12 * h);
}

// Unit vectors for every element of a small input; for a large input, some elements and, unless
// they would cross kinks of the function, some dense random directions.
std::vector<std::vector<double>> Directions(int64_t n, uint64_t stream, bool kinks) {
  constexpr int64_t kSmall = 200, kLarge = 5000;
  const int elements = n > kLarge ? 4 : 16, dense = kinks ? 0 : n > kLarge ? 2 : 6;
  std::vector<std::vector<double>> directions;
  const Philox random(0x646972);
  auto unit = [&](int64_t i) {
    directions.emplace_back(n);
    directions.back()[i] = 1;
  };
  if (n <= kSmall) {
    for (int64_t i = 0; i < n; ++i) unit(i);
    return directions;
  }
  for (int e = 0; e < elements; ++e) unit(random.At(2 * stream, e) % n);
  for (int d = 0; d < dense; ++d) {
    directions.emplace_back(n);
    for (int64_t i = 0; i < n; ++i) {
      directions.back()[i] = random.At(2 * stream + 1, d * n + i) & 1 ? 1.0 : -1.0;
    }
  }
  return directions;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

Result FiniteDifferences(const OpCase&, const OpSample& s, Device device) {
  return Guarded([&](Result& result) {
    // Tighter than the usual 1e-3 relative, 1e-5 absolute: the stencil's error is below 1e-9 for
    // functions that are smooth on the scale of the inputs.
    const Tolerance tolerance{1e-6, 1e-7, ""};
    const std::vector<RefTensor> x = Values(s, DType::kF64);
    const Run run = RunAll(s, x, AllNeeds(s), DType::kF64, device);
    std::vector<RefTensor> weights;
    for (size_t k = 0; k < run.outputs.size(); ++k) {
      const Tensor& y = run.outputs[k];
      weights.push_back(y.requires_grad() ? RootGradient(y.shape(), k) : RefTensor(Shape{0}));
    }
    const Function op = [&](const std::vector<RefTensor>& values) {
      std::vector<RefTensor> y;
      for (const Tensor& t : s.run(Inputs(s, values, DType::kF64, device))) y.push_back(ToRef(t));
      return y;
    };
    const Function reference = [&](const std::vector<RefTensor>& v) { return s.reference(v); };
    for (size_t i = 0; i < x.size(); ++i) {
      const InputSpec& spec = s.inputs[i];
      if (!run.grads[i].defined() || spec.dtype.value_or(DType::kF64) != DType::kF64) continue;
      const std::vector<double> grad = ToRef(run.grads[i]).data;
      const double h = 1e-4 * std::min(1.0, std::max(std::abs(spec.low), std::abs(spec.high)));
      const auto directions = Directions(static_cast<int64_t>(grad.size()), i, s.kinks);
      RefTensor got(Shape{static_cast<int64_t>(directions.size())});
      RefTensor by_op = got, by_reference = got;
      for (size_t d = 0; d < directions.size(); ++d) {
        got.data[d] = Dot(grad, directions[d]);
        by_op.data[d] = Derivative(op, x, i, directions[d], h, weights);
        by_reference.data[d] = Derivative(reference, x, i, directions[d], h, weights);
      }
      Compare(result, StrCat("gradient ", i, " against differences of the op"), got, by_op,
              tolerance);
      Compare(result, StrCat("gradient ", i, " against differences of the reference"), got,
              by_reference, tolerance);
    }
  });
}

// ---- All checks of a case ----

namespace {

using Check = Result (*)(const OpCase&, const OpSample&, DType, Device);

Result MetaCheck(const OpCase& c, const OpSample& s, DType dtype, Device) {
  return Meta(c, s, dtype);
}

// The checks of each dtype; the second list: those of samples that have a gradient.
struct Table {
  std::vector<std::pair<const char*, Check>> all, gradient;
};

const Table kOnCpu = {
    {{"Forward", Forward}, {"Determinism", Determinism}, {"Meta", MetaCheck}},
    {{"Gradient", Gradient},
     {"Accumulation", Accumulation},
     {"Subsets", Subsets},
     {"Overwriting", Overwriting}},
};
// The checks of the kernels themselves; the CPU's cover the rest (unnoticed writes, shapes on the
// meta device).
const Table kOnCuda = {
    {{"Orders", Orders}, {"Unaligned", Unaligned}},
    {{"Accumulation", Accumulation}, {"Subsets", Subsets}},
};

void AddSample(std::vector<NamedCheck>& checks, const OpCase& c, const OpSample& s, Device device) {
  const Table& table = device.is_cpu() ? kOnCpu : kOnCuda;
  const bool gradient = HasGradient(c, s);
  for (DType dtype : DTypesOn(c, device)) {
    auto add = [&](const auto& list) {
      for (const auto& [name, check] : list) {
        // The f64 gradient is what the others are compared with.
        if (check == Gradient && dtype == DType::kF64) continue;
        checks.push_back({StrCat(name, "/", s.name, "/", dtype),
                          [=, &c, run = check] { return run(c, s, dtype, device); }});
      }
    };
    add(table.all);
    if (gradient) add(table.gradient);
  }
  if (device.is_cpu() && gradient && s.finite_differences) {
    checks.push_back({StrCat("FiniteDifferences/", s.name),
                      [=, &c] { return FiniteDifferences(c, s, device); }});
  }
}

}  // namespace

std::vector<NamedCheck> Checks(const OpCase& c, Device device) {
  std::vector<NamedCheck> checks;
  if (device.is_cpu()) checks.push_back({"Declaration", [&c] { return Declaration(c); }});
  for (const OpSample& s : c.samples()) {
    if (!s.benchmark) AddSample(checks, c, s, device);
  }
  for (const ErrorSample& e : c.errors ? c.errors() : std::vector<ErrorSample>{}) {
    checks.push_back({StrCat("Error/", e.name), [e, device] { return ErrorMessage(e, device); }});
  }
  return checks;
}

Result All(const OpCase& c, Device device) {
  Result all;
  for (const NamedCheck& check : Checks(c, device)) {
    const Result result = check.run();
    all.compared += result.compared;
    all.max_absolute = std::max(all.max_absolute, result.max_absolute);
    all.max_relative = std::max(all.max_relative, result.max_relative);
    if (result.passed()) continue;
    all.error += StrCat(all.passed() ? "" : "\n", c.name, ".", check.name, ": ", result.error);
  }
  return all;
}

}  // namespace lockstep::check
