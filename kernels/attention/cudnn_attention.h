// cuDNN's fused attention: an alternative to flash_*, where it is installed.
#pragma once

#include <compare>
#include <functional>
#include <string>

#include "kernels/attention/attention_slices.h"

namespace lockstep::cuda {

// A plan of cuDNN's is made for sizes and strides, once per process and device.
struct CudnnAttentionProblem {
  // In elements; the last dimension's is 1.
  struct Strides {
    int64_t batch = 0, row = 0, head = 0;
    auto operator<=>(const Strides&) const = default;
  };

  CudnnAttentionProblem() = default;
  explicit CudnnAttentionProblem(const AttentionForwardArgs& args);
  explicit CudnnAttentionProblem(const AttentionBackwardArgs& args);
  auto operator<=>(const CudnnAttentionProblem&) const = default;

  bool backward = false;
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, d = 0;
  Strides q, k, v, y, dy, dq, dk, dv;
};

// Why cuDNN's attention cannot run on the stream's device; empty: it can. It can on GPUs of compute
// capability 8 and 9, with cuDNN 9.10.2 or newer, whose results there are those of flash kernels
// but for rounding, and the same bits when they are computed again. Found out once per device, but
// not while a CUDA graph is captured.
std::string WhyNoCudnnAttention(Stream stream);

// The low-level operations, for bf16 heads of a multiple of 8 up to 128 numbers and without
// dropout, where nothing speaks against cuDNN. Its kernels are the first ones of its heuristic for
// these sizes and strides, in backward of those that add without atomics: equal calls give equal
// bits, which the first call of a backward's problem sees for itself. Returns why it did nothing;
// empty: it ran, and *ran says how. In a capture of a CUDA graph there must have been such a call
// before.
std::string CudnnAttentionForward(Stream stream, const AttentionForwardArgs& args,
                                  std::string* ran = nullptr);
std::string CudnnAttentionBackward(Stream stream, const AttentionBackwardArgs& args,
                                   std::string* ran = nullptr);

// Without atomics backward keeps the gradient of the scores, bf16 [B, H, T, T], in its workspace:
// so it is done in slices. The most that a workspace may have is 2% of the device's memory, up to
// 1 GiB; or LOCKSTEP_CUDNN_WORKSPACE_MIB of the environment, in MiB: slices that stay in the L2
// cache may be faster.
struct CudnnSlices {
  AttentionSlices slices;
  CudnnAttentionProblem problem;  // of a slice
};

// The fewest slices of equal size of a backward whose workspace, which `workspace` tells in bytes
// for the problem of a slice, is at most `most`. Throws Error where there are none, and where a
// workspace has no room for the gradient of the scores: that backward adds with atomics.
CudnnSlices FitWorkspace(const CudnnAttentionProblem& whole, int64_t most,
                         const std::function<int64_t(const CudnnAttentionProblem&)>& workspace);

// How a GPU with these properties, in cuDNN's JSON, would do it: cuDNN gets the graph that it gets
// from the functions above, and chooses an engine. Needs its library and the driver's, but no GPU.
// Throws Error with cuDNN's reason where there is none. For tests.
struct CudnnChoice {
  int64_t workspace_bytes = 0;
  std::string engine;  // with its settings
};
CudnnChoice AskCudnnAttention(const CudnnAttentionProblem& problem, const std::string& properties);

}  // namespace lockstep::cuda
