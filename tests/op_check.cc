#include "tests/op_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "core/allocator.h"
#include "core/autograd.h"
#include "core/cuda/device.h"
#include "core/engine.h"
#include "core/philox.h"
#include "core/thread_pool.h"

#ifdef CUDASIM
#include "cudasim/executor.h"
#endif

namespace lockstep::check {
namespace {

// ---- Comparing ----

double Rms(const RefTensor& x) {
  double sum = 0;
  for (double v : x.data) sum += v * v;
  return x.data.empty() ? 0 : std::sqrt(sum / static_cast<double>(x.data.size()));
}

void Fail(Result& result, const std::string& error) {
  if (result.passed()) result.error = error;
}

// Adds one element to the result; false if it is outside the tolerance.
bool CompareElement(Result& result, double got, double want, double scale, const Tolerance& t) {
  ++result.compared;
  if (got == want) return true;  // infinities too
  const double error = std::abs(got - want);
  if (!(error <= result.max_absolute)) result.max_absolute = error;
  const double relative = error / std::max(std::abs(want), scale);
  if (!(relative <= result.max_relative)) result.max_relative = relative;
  return error <= t.absolute * scale + t.relative * std::abs(want);
}

void Compare(Result& result, const std::string& what, const RefTensor& got, const RefTensor& want,
             const Tolerance& t) {
  if (!(got.shape == want.shape)) {
    return Fail(result, StrCat(what, " has shape ", got.shape, ", not ", want.shape));
  }
  const double scale = std::max(Rms(want), 1e-3);
  int64_t bad = 0, first = -1;
  for (size_t i = 0; i < want.data.size(); ++i) {
    if (CompareElement(result, got.data[i], want.data[i], scale, t)) continue;
    if (bad++ == 0) first = static_cast<int64_t>(i);
  }
  if (bad == 0) return;
  std::ostringstream message;
  message.precision(17);
  message << what << ": " << bad << " of " << want.data.size() << " elements differ, first element "
          << first << ": got " << got.data[first] << ", want " << want.data[first] << " (tolerance "
          << t.relative << " relative, " << t.absolute << " x rms " << scale << "; largest error "
          << result.max_absolute << ")";
  Fail(result, message.str());
}

std::vector<std::byte> Bytes(const Tensor& x) {
  const Tensor host = x.Detach().To(kCpu).Contiguous();
  std::vector<std::byte> bytes(static_cast<size_t>(host.bytes()));
  if (!bytes.empty()) std::memcpy(bytes.data(), host.raw_data(), bytes.size());
  return bytes;
}

// The tolerance is that of the less exact of the dtype under test and the one the result has.
DType LessExact(DType a, DType b) {
  if (!IsFloating(b)) return a;
  return DefaultTolerance(b).relative > DefaultTolerance(a).relative ? b : a;
}

// ---- Running ----

bool HasInputGradient(const InputSpec& spec) {
  return spec.differentiable && !spec.index && (!spec.dtype || IsFloating(*spec.dtype));
}

std::vector<bool> AllNeeds(const OpSample& s) {
  std::vector<bool> needs;
  for (const InputSpec& spec : s.inputs) needs.push_back(HasInputGradient(spec));
  return needs;
}

std::vector<RefTensor> Values(const OpSample& s, DType dtype) {
  std::vector<RefTensor> values;
  for (size_t i = 0; i < s.inputs.size(); ++i) values.push_back(InputValues(s, i, dtype));
  return values;
}

std::vector<Tensor> Inputs(const OpSample& s, const std::vector<RefTensor>& values, DType dtype,
                           Device device) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < values.size(); ++i) {
    inputs.push_back(InputTensor(s.inputs[i], values[i], dtype, device));
  }
  return inputs;
}

void RequireGradients(std::vector<Tensor>& inputs, const std::vector<bool>& needs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (needs[i]) inputs[i].SetRequiresGrad();
  }
}

// Leaves NaNs in the memory that the next allocations get, so that an element that an op forgets
// to write shows. Memory of CUDA devices is left alone: their tests have it from the driver
// (LOCKSTEP_CUDA_ALLOCATOR=none), and the simulated one hands out NaNs.
void PoisonMemory(const std::vector<Tensor>& inputs) {
  if (!inputs.empty() && !inputs[0].device().is_cpu()) return;
  std::set<int64_t> sizes;
  for (int64_t size = 64; size <= 16384; size += std::max<int64_t>(64, size / 8)) {
    sizes.insert(size);
  }
  for (const Tensor& x : inputs) sizes.insert(x.bytes());
  std::vector<Storage> held;
  for (int64_t size : sizes) {
    for (int i = 0; i < 2; ++i) {
      held.push_back(Storage::Allocate(size, kCpu));
      if (size > 0) std::memset(held.back().data(), 0xff, static_cast<size_t>(size));
    }
  }
}

// A root gradient: multiples of 1/128 in [-1, 1], which every floating dtype holds exactly.
RefTensor RootGradient(const Shape& shape, size_t output) {
  RefTensor w(shape);
  const Philox random(0x726f6f74);
  for (size_t i = 0; i < w.data.size(); ++i) {
    w.data[i] = (static_cast<double>(random.At(output, i) % 257) - 128) / 128;
  }
  return w;
}

Tensor ToTensor(const RefTensor& values, DType dtype, Device device) {
  return Tensor::FromVector(values.data, values.shape).To(dtype).To(device);
}

struct Roots {
  std::vector<Tensor> tensors, grads;
};

Roots MakeRoots(const std::vector<Tensor>& outputs) {
  Roots roots;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i];
    if (!y.requires_grad()) continue;
    roots.tensors.push_back(y);
    roots.grads.push_back(y.device().is_meta()
                              ? Tensor::EmptyLike(y)
                              : ToTensor(RootGradient(y.shape(), i), y.dtype(), y.device()));
  }
  if (roots.tensors.empty()) {
    throw Error("no output requires a gradient although an input does");
  }
  return roots;
}

std::vector<Tensor> Gradients(const std::vector<Tensor>& inputs, const std::vector<bool>& needs) {
  std::vector<Tensor> grads(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!needs[i]) continue;
    grads[i] = inputs[i].grad();
    if (!grads[i].defined()) throw Error(StrCat("backward left no gradient for input ", i));
  }
  return grads;
}

struct Run {
  std::vector<Tensor> inputs, outputs, grads;  // an undefined gradient: not asked for
};

// Forward, and backward if any input needs a gradient.
Run RunOn(const OpSample& s, std::vector<Tensor> inputs, const std::vector<bool>& needs) {
  Run run;
  run.inputs = std::move(inputs);
  RequireGradients(run.inputs, needs);
  PoisonMemory(run.inputs);
  run.outputs = s.run(run.inputs);
  if (std::find(needs.begin(), needs.end(), true) == needs.end()) return run;
  const Roots roots = MakeRoots(run.outputs);
  PoisonMemory(run.inputs);
  Backward(roots.tensors, roots.grads);
  run.grads = Gradients(run.inputs, needs);
  return run;
}

Run RunAll(const OpSample& s, const std::vector<RefTensor>& values, const std::vector<bool>& needs,
           DType dtype, Device device) {
  return RunOn(s, Inputs(s, values, dtype, device), needs);
}

// Runs a check and turns what it throws into a failure.
template <class F>
Result Guarded(const F& check) {
  Result result;
  try {
    check(result);
  } catch (const std::exception& error) {
    Fail(result, StrCat("threw: ", error.what()));
  }
  return result;
}

void CompareBits(Result& result, const std::string& what, const Tensor& got, const Tensor& want) {
  ++result.compared;
  if (!(got.shape() == want.shape()) || got.dtype() != want.dtype()) {
    Fail(result, StrCat(what, " is ", got.Describe(), ", not ", want.Describe()));
  } else if (Bytes(got) != Bytes(want)) {
    Compare(result, StrCat(what, " differs in bits"), ToRef(got), ToRef(want), {0, 0, ""});
    Fail(result, StrCat(what, " differs in bits"));
  }
}

void CompareRuns(Result& result, const std::string& when, const Run& got, const Run& want) {
  for (size_t i = 0; i < want.outputs.size(); ++i) {
    CompareBits(result, StrCat("output ", i, " ", when), got.outputs[i], want.outputs[i]);
  }
  for (size_t i = 0; i < got.grads.size(); ++i) {
    if (!got.grads[i].defined()) continue;
    CompareBits(result, StrCat("gradient ", i, " ", when), got.grads[i], want.grads[i]);
  }
}

}  // namespace

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
      if (s.benchmark_only) continue;
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
    Fail(result, StrCat("threw something else than an Error: ", error.what()));
  }
  return result;
}

// ---- Values ----

namespace {

void CompareOutputs(Result& result, const OpCase& c, DType dtype, const Run& run,
                    const std::vector<RefTensor>& want) {
  if (want.size() != run.outputs.size()) {
    return Fail(result,
                StrCat("the op has ", run.outputs.size(), " outputs, the reference ", want.size()));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    Compare(result, StrCat("output ", i), ToRef(run.outputs[i]), want[i],
            ForwardTolerance(c, LessExact(dtype, run.outputs[i].dtype())));
  }
}

// Against the CPU's f64 backward.
void CompareGradients(Result& result, const OpCase& c, DType dtype, const Run& got,
                      const Run& want) {
  for (size_t i = 0; i < got.grads.size(); ++i) {
    if (!got.grads[i].defined()) continue;
    Compare(result, StrCat("gradient ", i), ToRef(got.grads[i]), ToRef(want.grads[i]),
            GradientTolerance(c, LessExact(dtype, got.grads[i].dtype())));
  }
}

}  // namespace

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
// five-point stencil. Outputs are subtracted element by element, so those that do not change add no
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

// Unit vectors for every element of a small input; for a large one some elements and, unless the
// function has kinks that they would cross, some dense random directions.
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
    // Sharper than the usual 1e-3 relative, 1e-5 absolute: the stencil's error is below 1e-9 for
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

// ---- Where gradients go ----

namespace {

constexpr int64_t kGuard = 17;  // elements on either side of a destination; odd, so that it is
                                // not aligned to 16 bytes
constexpr double kSentinel = -12345;  // inexact in 16 bits, but the same each time

// Two backwards into a destination inside a larger buffer that starts as NaN; `destination` is the
// dtype.
void CheckDestination(Result& result, const OpSample& s, const std::vector<RefTensor>& values,
                      const Run& plain, DType dtype, DType destination, Device device) {
  const std::vector<bool> needs = AllNeeds(s);
  std::vector<Tensor> inputs = Inputs(s, values, dtype, device);
  RequireGradients(inputs, needs);
  std::vector<Tensor> buckets(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!needs[i]) continue;
    const int64_t n = inputs[i].numel();
    buckets[i] = Tensor::Full({n + 2 * kGuard}, kSentinel, destination, device);
    const Storage slice =
        buckets[i].storage().Slice(kGuard * SizeOf(destination), n * SizeOf(destination));
    const Tensor grad = Tensor::FromStorage(slice, destination, inputs[i].shape());
    grad.Fill(std::numeric_limits<double>::quiet_NaN());
    inputs[i].autograd()->leaf->SetDestination(grad);
  }
  for (int pass = 1; pass <= 2; ++pass) {
    const Roots roots = MakeRoots(s.run(inputs));
    Backward(roots.tensors, roots.grads);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!needs[i]) continue;
      RefTensor want = ToRef(plain.grads[i]);
      for (double& v : want.data) v *= pass;
      const int64_t n = inputs[i].numel();
      Compare(result,
              StrCat("gradient ", i, " in a bucket of ", destination, ", backward ", pass, ","),
              ToRef(inputs[i].grad()), want, DefaultTolerance(LessExact(dtype, inputs[i].dtype())));
      const RefTensor bucket = ToRef(buckets[i]);
      const double sentinel = RoundTo(destination, kSentinel);
      for (int64_t g = 0; g < kGuard; ++g) {
        if (bucket.data[g] != sentinel || bucket.data[kGuard + n + g] != sentinel) {
          Fail(result, StrCat("gradient ", i, " was written outside its destination"));
        }
      }
    }
  }
}

}  // namespace

Result Accumulation(const OpCase&, const OpSample& s, DType dtype, Device device) {
  return Guarded([&](Result& result) {
    // Adding rounds a few times more; what the gradient itself is worth, Gradient checks.
    const std::vector<RefTensor> values = Values(s, dtype);
    const std::vector<bool> needs = AllNeeds(s);
    const Run plain = RunAll(s, values, needs, dtype, device);

    std::vector<Tensor> inputs = Inputs(s, values, dtype, device);
    RequireGradients(inputs, needs);
    std::vector<RefTensor> prior(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!needs[i]) continue;
      prior[i] = RootGradient(inputs[i].shape(), 1000 + i);
      inputs[i].autograd()->leaf->SetGrad(ToTensor(prior[i], inputs[i].dtype(), device));
    }
    const Roots roots = MakeRoots(s.run(inputs));
    Backward(roots.tensors, roots.grads);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!needs[i]) continue;
      RefTensor want = ToRef(plain.grads[i]);
      for (size_t k = 0; k < want.data.size(); ++k) want.data[k] += prior[i].data[k];
      Compare(result, StrCat("gradient ", i, " added to an earlier one"), ToRef(inputs[i].grad()),
              want, DefaultTolerance(LessExact(dtype, inputs[i].dtype())));
    }

    CheckDestination(result, s, values, plain, dtype, dtype, device);
    if (SizeOf(dtype) == 2) CheckDestination(result, s, values, plain, dtype, DType::kF32, device);
  });
}

Result Subsets(const OpCase&, const OpSample& s, DType dtype, Device device) {
  return Guarded([&](Result& result) {
    const std::vector<RefTensor> values = Values(s, dtype);
    const std::vector<bool> all = AllNeeds(s);
    const Run together = RunAll(s, values, all, dtype, device);
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i]) continue;
      std::vector<bool> only(all.size()), without = all;
      only[i] = true;
      without[i] = false;
      CompareRuns(result, StrCat("with a gradient for input ", i, " alone"),
                  RunAll(s, values, only, dtype, device), together);
      CompareRuns(result, StrCat("without a gradient for input ", i),
                  RunAll(s, values, without, dtype, device), together);
    }
  });
}

// ---- Bits, memory, shapes ----

namespace {

class ThreadsRestored {
 public:
  ~ThreadsRestored() { SetNumThreads(threads_); }

 private:
  int threads_ = NumThreads();
};

}  // namespace

Result Determinism(const OpCase& c, const OpSample& s, DType dtype, Device device) {
  return Guarded([&](Result& result) {
    const std::vector<RefTensor> values = Values(s, dtype);
    const std::vector<bool> needs =
        HasGradient(c, s) ? AllNeeds(s) : std::vector<bool>(values.size());
    const Run first = RunAll(s, values, needs, dtype, device);
    CompareRuns(result, "the second time", RunAll(s, values, needs, dtype, device), first);
    ThreadsRestored restored;
    for (int threads : {1, 2, 3}) {
      SetNumThreads(threads);
      CompareRuns(result, StrCat("with ", threads, " threads"),
                  RunAll(s, values, needs, dtype, device), first);
    }
    const std::vector<Tensor> fresh = Inputs(s, values, dtype, device);
    for (size_t i = 0; i < fresh.size(); ++i) {
      CompareBits(result, StrCat("input ", i, " afterwards"), first.inputs[i], fresh[i]);
    }
  });
}

Result Unaligned(const OpCase& c, const OpSample& s, DType dtype, Device device) {
  return Guarded([&](Result& result) {
    const std::vector<RefTensor> values = Values(s, dtype);
    const bool gradient = HasGradient(c, s);
    const std::vector<bool> needs = gradient ? AllNeeds(s) : std::vector<bool>(values.size());
    std::vector<Tensor> inputs = Inputs(s, values, dtype, device);
    for (Tensor& x : inputs) {
      if (!x.is_contiguous() || x.numel() == 0) continue;
      const Tensor memory = Tensor::Zeros({x.numel() + 1}, x.dtype(), device);
      const Tensor shifted = Tensor::FromStorage(memory.storage(), x.dtype(), x.shape(), 1);
      shifted.CopyFrom(x);
      x = shifted;
    }
    const Run run = RunOn(s, std::move(inputs), needs);
    CompareOutputs(result, c, dtype, run, s.reference(values));
    if (!gradient) return;
    CompareGradients(result, c, dtype, run, RunAll(s, values, needs, DType::kF64, kCpu));
  });
}

namespace {

// Calls f(description) once for each order in which the device can run threads.
template <class F>
void ForEachThreadOrder(const F& f) {
#ifdef CUDASIM
  cudasim::ExecutorSettings& settings = cudasim::GetExecutorSettings();
  const cudasim::ExecutorSettings before = settings;
  const std::pair<cudasim::Order, const char*> orders[] = {
      {cudasim::Order::kForward, "threads in order"},
      {cudasim::Order::kReverse, "threads in reverse order"},
      {cudasim::Order::kRandom, "threads in random order"}};
  for (const auto& [order, name] : orders) {
    settings.order = order;
    f(name);
  }
  settings = before;
#else
  f("the first time");
  f("the second time");
#endif
}

}  // namespace

Result Orders(const OpCase& c, const OpSample& s, DType dtype, Device device) {
  return Guarded([&](Result& result) {
    const std::vector<RefTensor> values = Values(s, dtype), reference = s.reference(values);
    const bool gradient = HasGradient(c, s);
    const std::vector<bool> needs = gradient ? AllNeeds(s) : std::vector<bool>(values.size());
    const Run want = gradient ? RunAll(s, values, needs, DType::kF64, kCpu) : Run();
    const std::vector<Tensor> fresh = Inputs(s, values, dtype, kCpu);
    std::optional<Run> first;
    ForEachThreadOrder([&](const char* order) {
      Result one;
      Run run = RunAll(s, values, needs, dtype, device);
      CompareOutputs(one, c, dtype, run, reference);
      if (gradient) CompareGradients(one, c, dtype, run, want);
      if (first) CompareRuns(one, "beside the first order", run, *first);
      for (size_t i = 0; i < fresh.size(); ++i) {
        CompareBits(one, StrCat("input ", i, " afterwards"), run.inputs[i].Detach().To(kCpu),
                    fresh[i]);
      }
      result.compared += one.compared;
      result.max_absolute = std::max(result.max_absolute, one.max_absolute);
      result.max_relative = std::max(result.max_relative, one.max_relative);
      if (!one.passed()) Fail(result, StrCat("with ", order, ": ", one.error));
      if (!first) first = std::move(run);
    });
  });
}

Result Overwriting(const OpCase&, const OpSample& s, DType dtype, Device device) {
  return Guarded([&](Result& result) {
    const std::vector<RefTensor> values = Values(s, dtype);
    const std::vector<bool> needs = AllNeeds(s);
    const Run want = RunAll(s, values, needs, dtype, device);
    for (size_t i = 0; i < want.inputs.size() + want.outputs.size(); ++i) {
      Run run;
      run.inputs = Inputs(s, values, dtype, device);
      RequireGradients(run.inputs, needs);
      run.outputs = s.run(run.inputs);
      const Roots roots = MakeRoots(run.outputs);
      const bool input = i < run.inputs.size();
      const size_t at = input ? i : i - run.inputs.size();
      (input ? run.inputs : run.outputs)[at].Detach().Fill(7);
      try {
        Backward(roots.tensors, roots.grads);
      } catch (const Error& error) {
        if (std::string(error.what()).find("overwritten") == std::string::npos) throw;
        continue;
      }
      run.grads = Gradients(run.inputs, needs);
      Run grads_only = want;
      grads_only.outputs.clear();
      CompareRuns(result, StrCat("after writing to ", input ? "input " : "output ", at, " unseen"),
                  run, grads_only);
    }
  });
}

Result Meta(const OpCase& c, const OpSample& s, DType dtype) {
  return Guarded([&](Result& result) {
    const std::vector<RefTensor> values = Values(s, dtype);
    const std::vector<bool> needs =
        HasGradient(c, s) ? AllNeeds(s) : std::vector<bool>(values.size());
    const Run real = RunAll(s, values, needs, dtype, kCpu);
    std::vector<Tensor> inputs;
    for (const Tensor& x : real.inputs) {
      inputs.push_back(Tensor::Empty(x.shape(), x.dtype(), kMeta));
    }
    RequireGradients(inputs, needs);
    const int64_t before = GetAllocator(kCpu).stats().allocations;
    const std::vector<Tensor> outputs = s.run(inputs);
    std::vector<Tensor> grads(inputs.size());
    if (HasGradient(c, s)) {
      const Roots roots = MakeRoots(outputs);
      Backward(roots.tensors, roots.grads);
      grads = Gradients(inputs, needs);
    }
    const int64_t allocations = GetAllocator(kCpu).stats().allocations - before;
    if (allocations != 0) Fail(result, StrCat("allocated memory ", allocations, " times"));
    auto same = [&](const char* what, size_t i, const Tensor& got, const Tensor& want) {
      ++result.compared;
      if (!got.device().is_meta() || !(got.shape() == want.shape()) ||
          got.dtype() != want.dtype()) {
        Fail(result,
             StrCat(what, " ", i, " is ", got.Describe(), ", on the CPU ", want.Describe()));
      }
    };
    for (size_t i = 0; i < real.outputs.size(); ++i) {
      same("output", i, outputs[i], real.outputs[i]);
    }
    for (size_t i = 0; i < real.grads.size(); ++i) {
      if (needs[i]) same("gradient", i, grads[i], real.grads[i]);
    }
  });
}

}  // namespace lockstep::check
