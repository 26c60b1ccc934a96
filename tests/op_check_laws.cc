// The checks of op_check.h that compare an op with itself: gradient destinations, bits, orders,
// memory.
#include <algorithm>
#include <limits>
#include <optional>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/cuda/device.h"
#include "core/thread_pool.h"
#include "cudasim/executor.h"
#include "tests/op_check_run.h"
#include "tools/cudasim/counters.h"

namespace lockstep::check {

// ---- Gradient destinations ----

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
    Backward(roots.tensors, roots.grads, {.evaluation = true});
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
    // Adding rounds a few more times; Gradient checks the gradient itself.
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
    Backward(roots.tensors, roots.grads, {.evaluation = true});
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
      CompareRuns(result, StrCat("with a gradient for input ", i, " only"),
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
      const double before = IsFloating(x.dtype()) ? std::numeric_limits<double>::quiet_NaN() : 0;
      const Tensor memory = Tensor::Full({x.numel() + 1}, before, x.dtype(), device);
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
  if (&cudasim::GetExecutorSettings == nullptr) {  // real GPUs
    f("the first time");
    f("the second time");
    return;
  }
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
    if (&cudasim::TakeApproximated != nullptr) cudasim::TakeApproximated();
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
    Hash hash;
    hash.Add(*first);
    result.hash = hash.value();
    if (&cudasim::TakeApproximated != nullptr) result.approximated = cudasim::TakeApproximated();
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
        Backward(roots.tensors, roots.grads, {.evaluation = true});
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
      Backward(roots.tensors, roots.grads, {.evaluation = true});
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
