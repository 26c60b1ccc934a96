// cuDNN's fused attention: an alternative to flash_*, where it is installed.
#pragma once

#include <compare>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/attention/attention_slices.h"

namespace lockstep::cuda {

// A cuDNN plan is made for given sizes and strides, once per process and device.
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

// Why cuDNN's attention cannot run on the stream's device; empty if it can: on GPUs of compute
// capability 8 and 9, with cuDNN 9.10.2 or newer, if its results there match those of the flash
// kernels up to rounding and have the same bits when they are computed again. Determined once per
// device, but not while a CUDA graph is being captured. The text lives as long as the process.
std::string_view WhyNoCudnnAttention(Stream stream);

// The low-level operations, for bf16 heads whose size is a multiple of 8 up to 128, without
// dropout and with plain scores, where WhyNoCudnnAttention returns nothing. The kernels are the
// first that cuDNN's heuristic names for these sizes and strides; in backward, the first that add
// without atomics. So equal calls give equal bits, which the first call of each backward problem
// verifies. Returns why it did nothing; empty if it ran, and then *ran says how. While a CUDA graph
// is captured, such a call must have been made before.
std::string CudnnAttentionForward(Stream stream, const AttentionForwardArgs& args,
                                  std::string* ran = nullptr);
std::string CudnnAttentionBackward(Stream stream, const AttentionBackwardArgs& args,
                                   std::string* ran = nullptr);

// Without atomics backward keeps the gradient of the scores, bf16 [B, H, T, T], in its workspace:
// so it runs in slices. A workspace is limited to 2% of the device's memory, up to 1 GiB; or to the
// environment variable LOCKSTEP_CUDNN_WORKSPACE_MIB, in MiB: slices that stay in the L2 cache may
// be faster.
struct CudnnSlices {
  AttentionSlices slices;
  CudnnAttentionProblem problem;  // of a slice
};

// Cuts a backward into the fewest slices of equal size whose workspace is at most `most` bytes;
// `workspace` returns the bytes that a slice's problem needs. Throws Error if nothing fits, and if
// a workspace has no room for the gradient of the scores: that backward adds with atomics.
CudnnSlices FitWorkspace(const CudnnAttentionProblem& whole, int64_t most,
                         const std::function<int64_t(const CudnnAttentionProblem&)>& workspace);

// How a GPU with these properties, given as cuDNN's JSON, would run it: cuDNN gets the same graph
// as from the functions above, and chooses an engine. Needs cuDNN's library and the driver's, but
// no GPU. Throws Error with cuDNN's reason if it has no engine. For tests.
struct CudnnChoice {
  int64_t workspace_bytes = 0;
  std::string engine;  // with its settings
};
CudnnChoice AskCudnnAttention(const CudnnAttentionProblem& problem, const std::string& properties);

}  // namespace lockstep::cuda
