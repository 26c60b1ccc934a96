#include "tests/op_check_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "core/autograd/engine.h"
#include "core/philox.h"

namespace lockstep::check {
namespace {

double Rms(const RefTensor& x) {
  double sum = 0;
  for (double v : x.data) sum += v * v;
  return x.data.empty() ? 0 : std::sqrt(sum / static_cast<double>(x.data.size()));
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

std::vector<std::byte> Bytes(const Tensor& x) {
  const Tensor host = x.Detach().To(kCpu).Contiguous();
  std::vector<std::byte> bytes(static_cast<size_t>(host.bytes()));
  if (!bytes.empty()) std::memcpy(bytes.data(), host.raw_data(), bytes.size());
  return bytes;
}

bool HasInputGradient(const InputSpec& spec) {
  return spec.differentiable && !spec.index && (!spec.dtype || IsFloating(*spec.dtype));
}

// Leaves NaNs in the memory that the next allocations get, which reveals elements that an op
// forgets to write. Does not touch CUDA memory: tests get that from the driver
// (LOCKSTEP_CUDA_ALLOCATOR=none), and the simulated driver hands out NaNs.
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

}  // namespace

// ---- Comparing ----

void Fail(Result& result, const std::string& error) {
  if (result.passed()) result.error = error;
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

DType LessExact(DType a, DType b) {
  if (!IsFloating(b)) return a;
  return DefaultTolerance(b).relative > DefaultTolerance(a).relative ? b : a;
}

// ---- Running ----

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

Run RunOn(const OpSample& s, std::vector<Tensor> inputs, const std::vector<bool>& needs) {
  Run run;
  run.inputs = std::move(inputs);
  RequireGradients(run.inputs, needs);
  PoisonMemory(run.inputs);
  run.outputs = s.run(run.inputs);
  if (std::find(needs.begin(), needs.end(), true) == needs.end()) return run;
  const Roots roots = MakeRoots(run.outputs);
  PoisonMemory(run.inputs);
  Backward(roots.tensors, roots.grads, {.evaluation = true});
  run.grads = Gradients(run.inputs, needs);
  return run;
}

Run RunAll(const OpSample& s, const std::vector<RefTensor>& values, const std::vector<bool>& needs,
           DType dtype, Device device) {
  return RunOn(s, Inputs(s, values, dtype, device), needs);
}

// ---- Comparing runs ----

void Hash::Add(double x) {
  const uint64_t bits = std::isnan(x) ? 0x7ff8000000000000 : std::bit_cast<uint64_t>(x);
  hash_ = HashName(reinterpret_cast<const char*>(&bits), sizeof(bits), hash_);
}

void Hash::Add(const Tensor& x) {
  for (const double v : ToRef(x).data) Add(v);
}

void Hash::Add(const Run& run) {
  for (const Tensor& y : run.outputs) Add(y);
  for (const Tensor& gradient : run.grads) {
    if (gradient.defined()) Add(gradient);
  }
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

void CompareGradients(Result& result, const OpCase& c, DType dtype, const Run& got,
                      const Run& want) {
  for (size_t i = 0; i < got.grads.size(); ++i) {
    if (!got.grads[i].defined()) continue;
    Compare(result, StrCat("gradient ", i), ToRef(got.grads[i]), ToRef(want.grads[i]),
            GradientTolerance(c, LessExact(dtype, got.grads[i].dtype())));
  }
}

}  // namespace lockstep::check
