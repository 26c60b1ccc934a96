#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
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
#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/cudnn_attention.h"
#include "kernels/attention/cudnn_plan.h"

namespace lockstep::cuda {
namespace {

constexpr const char* kNoneSimulated = "a simulated GPU has no cuDNN";

using Problem = CudnnAttentionProblem;
using Value = CudnnGraph::Value;

// How to do a problem, or why not.
struct Answer {
  std::unique_ptr<const CudnnAttentionPlan> plan;
  AttentionSlices slices;
  std::string why_not;
  bool repeats = false;  // seen to give the same bits again
};

// One per device. A handle is used by one thread at a time.
struct DeviceState {
  std::mutex asking, running;
  std::atomic<bool> asked = false;  // then the answer stays
  std::string why_not;
  cudnnHandle_t handle = nullptr;
  int64_t most_workspace = 0;
  std::map<Problem, Answer> answers;
};

// Never destroyed: the driver may be unloaded first.
DeviceState& StateOf(Device device) {
  static auto& states = *new std::vector<DeviceState>(static_cast<size_t>(DeviceCount()));
  return states.at(static_cast<size_t>(device.index));
}

int64_t MostWorkspace(int64_t device_bytes) {
  const char* text = std::getenv("LOCKSTEP_CUDNN_WORKSPACE_MIB");
  if (text == nullptr) return std::min(int64_t{1} << 30, device_bytes / 50);
  int64_t mib = 0;
  const std::string_view all = text;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), mib);
  if (error != std::errc() || end != all.data() + all.size() || mib < 1 || mib > 1 << 20) {
    throw InputError(StrCat(
        "LOCKSTEP_CUDNN_WORKSPACE_MIB must be MiB of memory, 1 to 1048576, not '", text, "'"));
  }
  return mib << 20;
}

Answer FindPlan(const Problem& problem, const DeviceState& state) {
  try {
    std::unique_ptr<const CudnnAttentionPlan> plan;
    const auto workspace = [&](const Problem& p) {
      plan = std::make_unique<const CudnnAttentionPlan>(p, CudnnTarget{.handle = state.handle});
      return plan->plan.workspace_bytes();
    };
    if (problem.backward) {
      // A slice's bits are those of the whole if the same kernels compute them.
      workspace(problem);
      const std::string engine = plan->plan.engine();
      const AttentionSlices slices = FitWorkspace(problem, state.most_workspace, workspace).slices;
      if (plan->plan.engine() != engine) {
        throw Error("its slices would run on another engine than the whole");
      }
      return {std::move(plan), slices, "", false};
    }
    if (workspace(problem) <= state.most_workspace) return {std::move(plan), {}, "", false};
    return {nullptr,
            {},
            StrCat("its workspace would be larger than ", state.most_workspace, " bytes"),
            false};
  } catch (const Error& error) {
    return {nullptr, {}, error.what(), false};
  }
}

// With state.running held.
Answer& AnswerTo(const Problem& problem, Stream stream, DeviceState& state) {
  LS_INVARIANT(state.handle != nullptr, "attention: cuDNN was not asked whether it can");
  SetDevice(stream.device);
  const auto [at, is_new] = state.answers.try_emplace(problem);
  if (is_new) at->second = FindPlan(problem, state);
  return at->second;
}

std::string Describe(const Answer& answer) {
  const int64_t parts = answer.slices.parts();
  return StrCat("cuDNN ", Cudnn().GetVersion(), ", ", answer.plan->plan.engine(), ", workspace ",
                answer.plan->plan.workspace_bytes(), " bytes, ", parts,
                parts == 1 ? " slice" : " slices");
}

void Run(Stream stream, const DeviceState& state, const CudnnAttentionPlan& plan,
         std::span<const void* const> addresses) {
  LS_INVARIANT(plan.values.size() == addresses.size(), "attention: cuDNN's plan has ",
               plan.values.size(), " tensors, not ", addresses.size());
  std::vector<std::pair<Value, const void*>> values;
  for (size_t i = 0; i < addresses.size(); ++i) values.emplace_back(plan.values[i], addresses[i]);
  CheckCudnn(Cudnn().SetStream(state.handle, static_cast<cudaStream_t>(stream.handle.get())),
             "choosing a stream");
  const Tensor workspace = Tensor::Empty({plan.plan.workspace_bytes()}, DType::kU8, stream.device);
  plan.plan.Run(state.handle, values, Data<uint8_t>(workspace));
}

bool IsAligned(const Tensor& x) { return HeadTensor<const bf16>(x).Aligned(x.dim(3)); }
Tensor Aligned(const Tensor& x) { return IsAligned(x) ? x : x.Clone(); }

// bf16, of both signs, on the device.
Tensor Noise(const Shape& shape, uint64_t seed, Device device) {
  const Tensor x = Tensor::Empty(shape, DType::kF32, kCpu);
  const Philox random(seed);
  float* data = x.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    data[i] = static_cast<float>(random.At(0, static_cast<uint64_t>(i)) % 4001) / 2000 - 1;
  }
  return x.To(DType::kBF16).To(device);
}

// ---- Whether it can. ----

// Forward and backward of a problem by cuDNN or by flash kernels: y, log_sum_exp, dq, dk, dv, on
// the CPU. Throws Error with cuDNN's reason.
struct Trial {
  int64_t length, heads, kv_heads, d;

  std::vector<Tensor> Compute(Stream stream, bool by_cudnn) const {
    constexpr int64_t kBatch = 2;
    const auto values = [&](uint64_t seed, int64_t n) {
      return Noise({kBatch, length, n, d}, seed, stream.device);
    };
    AttentionBackwardArgs b;
    b.q = values(1, heads);
    b.k = values(2, kv_heads);
    b.v = values(3, kv_heads);
    b.dy = values(4, heads);
    b.scores.scale = 1 / std::sqrt(static_cast<double>(d));
    b.y = Tensor::EmptyLike(b.q);
    b.log_sum_exp = Tensor::Empty({kBatch, heads, length}, DType::kF32, stream.device);
    b.dq = Tensor::EmptyLike(b.q);
    b.dk = Tensor::EmptyLike(b.k);
    b.dv = Tensor::EmptyLike(b.v);
    const AttentionForwardArgs f{b.q, b.k, b.v, b.scores, {}, b.y, b.log_sum_exp};
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

// Empty if cuDNN's results are right, in one piece and, where that is possible, in slices. Rounding
// to bf16 makes differences of 2e-3 to 4e-3.
std::string WhatIsWrong(Stream stream, DeviceState& state) {
  constexpr double kMost = 1e-2;
  constexpr int64_t kSmall = 420'000;  // bytes: the first trial then has 4 slices
  const int64_t most = state.most_workspace;
  for (const Trial& trial : {Trial{200, 4, 2, 64}, Trial{130, 2, 2, 128}}) {
    const std::vector<Tensor> want = trial.Compute(stream, false);
    for (const int64_t limit : {most, kSmall}) {
      state.most_workspace = limit;
      state.answers.clear();
      std::vector<Tensor> got, again;
      try {
        got = trial.Compute(stream, true);
        again = trial.Compute(stream, true);
      } catch (const Error&) {
        if (limit == most) throw;
        continue;  // no slice fits into so little
      }
      for (size_t i = 0; i < want.size(); ++i) {
        const double difference = Difference(got[i], want[i]);
        if (!(difference < kMost)) {
          return StrCat("its result ", i, " of a trial is off by ", difference, " of its size");
        }
        const auto bytes = static_cast<size_t>(got[i].numel()) * sizeof(float);
        if (std::memcmp(got[i].raw_data(), again[i].raw_data(), bytes) != 0) {
          return StrCat("its result ", i, " of a trial has different bits the second time");
        }
      }
    }
    state.most_workspace = most;
  }
  state.answers.clear();
  return "";
}

std::string Ask(Stream stream, DeviceState& state) {
  try {
    SetDevice(stream.device);
    cudaDeviceProp properties;
    LS_CUDA(cudaGetDeviceProperties(&properties, stream.device.index));
    if (properties.major != 8 && properties.major != 9) {
      return StrCat("it is used on GPUs of compute capability 8 and 9, not ", properties.major, ".",
                    properties.minor);
    }
    state.most_workspace = MostWorkspace(static_cast<int64_t>(properties.totalGlobalMem));
    CheckCudnn(Cudnn().Create(&state.handle), "starting");
    return WhatIsWrong(stream, state);
  } catch (const InputError&) {
    throw;
  } catch (const Error& error) {
    return error.what();
  }
}

bool IsCapturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LS_CUDA(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle.get()), &status));
  return status != cudaStreamCaptureStatusNone;
}

// ---- Backward, by slices. ----

void RunBackward(Stream stream, const DeviceState& state, const Answer& answer,
                 const AttentionBackwardArgs& args) {
  const auto scale = static_cast<float>(args.scores.scale);
  const float minus_infinity = -std::numeric_limits<float>::infinity(), one = 1;
  for (int64_t i = 0; i < answer.slices.parts(); ++i) {
    const AttentionBackwardArgs slice = SliceOf(args, answer.slices, i);
    const Tensor delta = Tensor::EmptyLike(slice.log_sum_exp);
    const std::array<const void*, 13> addresses{Data<bf16>(slice.q),
                                                Data<bf16>(slice.k),
                                                Data<bf16>(slice.v),
                                                Data<bf16>(slice.y),
                                                Data<float>(slice.log_sum_exp),
                                                Data<bf16>(slice.dy),
                                                Data<bf16>(slice.dq),
                                                Data<bf16>(slice.dk),
                                                Data<bf16>(slice.dv),
                                                Data<float>(delta),
                                                &scale,
                                                &minus_infinity,
                                                &one};
    Run(stream, state, *answer.plan, addresses);
  }
}

// Whether a backward gives the same gradients again, at these sizes and concurrently with another
// kernel: neither what cuDNN says about its kernels nor small sizes reveal the order in which it
// adds. Overwrites dq, dk and dv. The gradient of the output is noise: one of zero proves nothing.
bool RepeatsBits(Stream stream, const DeviceState& state, const Answer& answer,
                 AttentionBackwardArgs args) {
  constexpr int kTimes = 4;
  // Of one sample, for all: drawing takes the host a while.
  const Tensor noise = Noise({1, args.dy.dim(1), args.dy.dim(2), args.dy.dim(3)}, 5, stream.device);
  args.dy = noise.Expand(args.dy.shape()).Contiguous();
  const Stream beside = GetStreamBackend(DeviceType::kCuda).CreateStream(stream.device);
  const std::shared_ptr<const void> at_end(nullptr, [&](const void*) { Synchronize(beside); });
  Event ready(stream.device);
  ready.Record(stream);
  ready.Wait(beside);
  std::vector<Tensor> first;
  for (int i = 0; i < kTimes; ++i) {
    {
      const StreamGuard guard(beside);
      FlashAttentionForward(beside, {args.q,
                                     args.k,
                                     args.v,
                                     args.scores,
                                     {},
                                     Tensor::Empty(args.q.shape(), DType::kBF16, stream.device),
                                     Tensor::EmptyLike(args.log_sum_exp)});
    }
    RunBackward(stream, state, answer, args);
    std::vector<Tensor> results;
    for (const Tensor& x : {args.dq, args.dk, args.dv}) results.push_back(x.Contiguous().To(kCpu));
    Synchronize(beside);
    if (first.empty()) first = results;
    for (size_t k = 0; k < first.size(); ++k) {
      const auto bytes = static_cast<size_t>(first[k].numel()) * sizeof(bf16);
      if (std::memcmp(first[k].raw_data(), results[k].raw_data(), bytes) != 0) return false;
    }
  }
  return true;
}

}  // namespace

std::string_view WhyNoCudnnAttention(Stream stream) {
  if (Simulated()) return kNoneSimulated;
  DeviceState& state = StateOf(stream.device);
  if (state.asked) return state.why_not;
  const std::lock_guard lock(state.asking);
  if (!state.asked) {
    if (IsCapturing(stream)) return "a CUDA graph is being captured";
    state.why_not = Ask(stream, state);
    state.asked = true;
  }
  return state.why_not;
}

std::string CudnnAttentionForward(Stream stream, const AttentionForwardArgs& args,
                                  std::string* ran) {
  if (Simulated()) return kNoneSimulated;
  AttentionForwardArgs own = args;
  own.q = Aligned(args.q);
  own.k = Aligned(args.k);
  own.v = Aligned(args.v);
  LS_INVARIANT(IsAligned(own.y), "attention: the output must be aligned to 16 bytes");
  DeviceState& state = StateOf(stream.device);
  const std::lock_guard lock(state.running);
  const Answer& answer = AnswerTo(CudnnAttentionProblem(own), stream, state);
  if (answer.plan == nullptr) return answer.why_not;
  const auto scale = static_cast<float>(own.scores.scale);
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  const std::array<const void*, 7> addresses{Data<bf16>(own.q),
                                             Data<bf16>(own.k),
                                             Data<bf16>(own.v),
                                             Data<bf16>(own.y),
                                             Data<float>(own.log_sum_exp),
                                             &scale,
                                             &minus_infinity};
  Run(stream, state, *answer.plan, addresses);
  if (ran != nullptr) *ran = Describe(answer);
  return "";
}

std::string CudnnAttentionBackward(Stream stream, const AttentionBackwardArgs& args,
                                   std::string* ran) {
  if (Simulated()) return kNoneSimulated;
  AttentionBackwardArgs own = args;
  for (Tensor* x : {&own.q, &own.k, &own.v, &own.y, &own.dy}) *x = Aligned(*x);
  own.dy = own.dy.Contiguous();
  // cuDNN writes gradients, and does not add to them.
  const auto apart = [](Tensor& x, bool accumulate) {
    if (accumulate || !IsAligned(x)) x = Tensor::Empty(x.shape(), x.dtype(), x.device());
  };
  apart(own.dq, args.accumulate_q);
  apart(own.dk, args.accumulate_k);
  apart(own.dv, args.accumulate_v);
  DeviceState& state = StateOf(stream.device);
  const std::lock_guard lock(state.running);
  Answer& answer = AnswerTo(CudnnAttentionProblem(own), stream, state);
  if (answer.plan == nullptr) return answer.why_not;
  try {
    if (!answer.repeats && !IsCapturing(stream)) {
      answer.repeats = RepeatsBits(stream, state, answer, own);
      if (!answer.repeats) answer.why_not = "its backward gave different bits the second time";
    }
    if (answer.why_not.empty()) RunBackward(stream, state, answer, own);
  } catch (const OutOfMemoryError&) {
    if (answer.repeats) throw;
    answer.why_not = "the device has no memory for the workspace of its backward";
  }
  if (!answer.why_not.empty()) {
    answer.plan = nullptr;
    return answer.why_not;
  }
  if (ran != nullptr) *ran = Describe(answer);
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

}  // namespace lockstep::cuda
