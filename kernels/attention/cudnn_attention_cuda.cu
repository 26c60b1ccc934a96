#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/slots.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/cudnn_attention.h"
#include "kernels/attention/cudnn_plan.h"
#include "kernels/attention/flash_attention.h"

namespace lockstep::cuda {
#ifdef LOCKSTEP_HAS_CUDNN

namespace {

using Problem = CudnnAttentionProblem;
using Value = CudnnGraph::Value;

// How to do a problem, or why not.
struct Answer {
  std::unique_ptr<const CudnnAttentionPlan> plan;
  std::string why_not;
};

// Of one device. A handle is used by one thread at a time.
struct DeviceState {
  std::mutex asking, running;
  bool asked = false;
  std::string why_not;
  cudnnHandle_t handle = nullptr;
  std::map<Problem, Answer> answers;
};

// Never destroyed: the driver may be gone first.
DeviceState& StateOf(Device device) {
  static std::mutex& mutex = *new std::mutex;
  static auto& states = *new std::map<int, DeviceState>;
  const std::lock_guard lock(mutex);
  return states[device.index];
}

Answer FindPlan(const Problem& problem, cudnnHandle_t handle) {
  try {
    auto plan = std::make_unique<const CudnnAttentionPlan>(problem, CudnnTarget{.handle = handle});
    const int64_t bytes = plan->plan.workspace_bytes();
    if (bytes <= kCudnnMaxWorkspace) return {std::move(plan), ""};
    return {nullptr,
            StrCat("its workspace would be ", bytes, " bytes, more than ", kCudnnMaxWorkspace)};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

// Runs the problem's plan, or returns why not.
std::string Run(Stream stream, const Problem& problem, std::span<const void* const> addresses) {
  DeviceState& state = StateOf(stream.device);
  const std::lock_guard lock(state.running);
  LS_INVARIANT(state.handle != nullptr, "attention: cuDNN was not asked whether it can");
  SetDevice(stream.device);
  const auto [at, is_new] = state.answers.try_emplace(problem);
  if (is_new) at->second = FindPlan(problem, state.handle);
  if (at->second.plan == nullptr) return at->second.why_not;
  const CudnnAttentionPlan& plan = *at->second.plan;
  LS_INVARIANT(plan.values.size() == addresses.size(), "attention: cuDNN's plan has ",
               plan.values.size(), " tensors, not ", addresses.size());
  std::vector<std::pair<Value, const void*>> values;
  for (size_t i = 0; i < addresses.size(); ++i) values.emplace_back(plan.values[i], addresses[i]);
  CheckCudnn(Cudnn().SetStream(state.handle, static_cast<cudaStream_t>(stream.handle.get())),
             "choosing a stream");
  const Tensor workspace = Tensor::Empty({plan.plan.workspace_bytes()}, DType::kU8, stream.device);
  plan.plan.Run(state.handle, values, Data<uint8_t>(workspace));
  return "";
}

bool IsAligned(const Tensor& x) { return HeadTensor<const bf16>(x).Aligned(x.dim(3)); }
Tensor Aligned(const Tensor& x) { return IsAligned(x) ? x : x.Clone(); }

// ---- Whether it can. ----

// Forward and backward of a problem by cuDNN or by flash kernels: y, log_sum_exp, dq, dk, dv, on
// the CPU. Throws Error with cuDNN's reason.
struct Trial {
  int64_t length, heads, kv_heads, d;

  std::vector<Tensor> Compute(Stream stream, bool by_cudnn) const {
    constexpr int64_t kBatch = 2;
    const auto values = [&](uint64_t seed, int64_t n) {
      const Tensor x = Tensor::Empty({kBatch, length, n, d}, DType::kF32, kCpu);
      const Philox random(seed);
      float* data = x.data<float>();
      for (int64_t i = 0; i < x.numel(); ++i) {
        data[i] = static_cast<float>(random.At(0, static_cast<uint64_t>(i)) % 4001) / 2000 - 1;
      }
      return x.To(DType::kBF16).To(stream.device);
    };
    AttentionBackwardArgs b;
    b.q = values(1, heads);
    b.k = values(2, kv_heads);
    b.v = values(3, kv_heads);
    b.dy = values(4, heads);
    b.scale = 1 / std::sqrt(static_cast<double>(d));
    b.y = Tensor::EmptyLike(b.q);
    b.log_sum_exp = Tensor::Empty({kBatch, heads, length}, DType::kF32, stream.device);
    b.dq = Tensor::EmptyLike(b.q);
    b.dk = Tensor::EmptyLike(b.k);
    b.dv = Tensor::EmptyLike(b.v);
    const AttentionForwardArgs f{b.q, b.k, b.v, b.scale, {}, b.y, b.log_sum_exp};
    if (by_cudnn) {
      for (const bool backward : {false, true}) {
        const std::string why_not =
            backward ? CudnnAttentionBackward(stream, b) : CudnnAttentionForward(stream, f);
        if (!why_not.empty()) throw Error(why_not);
      }
    } else {
      FlashAttentionForward(stream, f);
      FlashAttentionBackward(stream, b);
    }
    std::vector<Tensor> results;
    for (const Tensor& x : {b.y, b.log_sum_exp, b.dq, b.dk, b.dv}) {
      results.push_back(x.To(kCpu).To(DType::kF32));
    }
    return results;
  }
};

// The rms of a - b over that of b; NaN if there is one in either.
double Difference(const Tensor& a, const Tensor& b) {
  const float *as = a.data<float>(), *bs = b.data<float>();
  double difference = 0, size = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double x = as[i], y = bs[i];
    difference += (x - y) * (x - y);
    size += y * y;
  }
  return std::sqrt(difference / size);
}

// Empty if cuDNN's results are right. Roundings to bf16 make differences of 2e-3 to 4e-3.
std::string WhatIsWrong(Stream stream) {
  constexpr double kMost = 1e-2;
  for (const Trial& trial : {Trial{200, 4, 2, 64}, Trial{130, 2, 2, 128}}) {
    const std::vector<Tensor> want = trial.Compute(stream, false);
    const std::vector<Tensor> got = trial.Compute(stream, true),
                              again = trial.Compute(stream, true);
    for (size_t i = 0; i < want.size(); ++i) {
      const double difference = Difference(got[i], want[i]);
      if (!(difference < kMost)) {
        return StrCat("its result ", i, " of a trial is off by ", difference, " of its size");
      }
      const auto bytes = static_cast<size_t>(got[i].numel()) * sizeof(float);
      if (std::memcmp(got[i].raw_data(), again[i].raw_data(), bytes) != 0) {
        return StrCat("its result ", i, " of a trial has other bits the second time");
      }
    }
  }
  return "";
}

std::string Ask(Stream stream, cudnnHandle_t* handle) {
  try {
    SetDevice(stream.device);
    cudaDeviceProp properties;
    LS_CUDA(cudaGetDeviceProperties(&properties, stream.device.index));
    if (properties.major != 8 && properties.major != 9) {
      return StrCat("it is used on GPUs of compute capability 8 and 9, not ", properties.major, ".",
                    properties.minor);
    }
    CheckCudnn(Cudnn().Create(handle), "starting");
    return WhatIsWrong(stream);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::string WhyNoCudnnAttention(Stream stream) {
  DeviceState& state = StateOf(stream.device);
  const std::lock_guard lock(state.asking);
  if (!state.asked) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    LS_CUDA(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle.get()), &status));
    if (status != cudaStreamCaptureStatusNone) return "a CUDA graph is captured";
    state.why_not = Ask(stream, &state.handle);
    state.asked = true;
  }
  return state.why_not;
}

std::string CudnnAttentionForward(Stream stream, const AttentionForwardArgs& args) {
  AttentionForwardArgs own = args;
  own.q = Aligned(args.q);
  own.k = Aligned(args.k);
  own.v = Aligned(args.v);
  LS_INVARIANT(IsAligned(own.y), "attention: the output must be aligned to 16 bytes");
  const auto scale = static_cast<float>(own.scale);
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  const std::array<const void*, 7> addresses{Data<bf16>(own.q),
                                             Data<bf16>(own.k),
                                             Data<bf16>(own.v),
                                             Data<bf16>(own.y),
                                             Data<float>(own.log_sum_exp),
                                             &scale,
                                             &minus_infinity};
  return Run(stream, CudnnAttentionProblem(own), addresses);
}

std::string CudnnAttentionBackward(Stream stream, const AttentionBackwardArgs& args) {
  AttentionBackwardArgs own = args;
  for (Tensor* x : {&own.q, &own.k, &own.v, &own.y, &own.dy}) *x = Aligned(*x);
  // cuDNN writes gradients, and does not add to them.
  const auto apart = [](Tensor& x, bool accumulate) {
    if (accumulate || !IsAligned(x)) x = Tensor::Empty(x.shape(), x.dtype(), x.device());
  };
  apart(own.dq, args.accumulate_q);
  apart(own.dk, args.accumulate_k);
  apart(own.dv, args.accumulate_v);
  const Tensor delta = Tensor::EmptyLike(args.log_sum_exp);
  const auto scale = static_cast<float>(args.scale);
  const float minus_infinity = -std::numeric_limits<float>::infinity(), one = 1;
  const std::array<const void*, 13> addresses{Data<bf16>(own.q),
                                              Data<bf16>(own.k),
                                              Data<bf16>(own.v),
                                              Data<bf16>(own.y),
                                              Data<float>(own.log_sum_exp),
                                              Data<bf16>(own.dy),
                                              Data<bf16>(own.dq),
                                              Data<bf16>(own.dk),
                                              Data<bf16>(own.dv),
                                              Data<float>(delta),
                                              &scale,
                                              &minus_infinity,
                                              &one};
  const std::string why_not = Run(stream, CudnnAttentionProblem(own), addresses);
  if (!why_not.empty()) return why_not;
  const auto deliver = [stream](const Tensor& from, const Tensor& to, bool accumulate) {
    if (accumulate) {
      accumulate_slot(stream, from, to);
    } else if (from.raw_data() != to.raw_data()) {
      copy_slot(stream, from, to);
    }
  };
  deliver(own.dq, args.dq, args.accumulate_q);
  deliver(own.dk, args.dk, args.accumulate_k);
  deliver(own.dv, args.dv, args.accumulate_v);
  return "";
}

#else

namespace {
#ifdef CUDASIM
constexpr const char* kWhyNot = "a simulated GPU has no cuDNN";
#else
constexpr const char* kWhyNot =
    "this program was built without cuDNN's headers: install cuDNN 9.8 or newer and build again";
#endif
}  // namespace

std::string WhyNoCudnnAttention(Stream) { return kWhyNot; }
std::string CudnnAttentionForward(Stream, const AttentionForwardArgs&) { return kWhyNot; }
std::string CudnnAttentionBackward(Stream, const AttentionBackwardArgs&) { return kWhyNot; }

#endif

}  // namespace lockstep::cuda
