// Which of CUDA's attention kernels run: flash attention on tensor cores, cuDNN's, or the plain
// ones in f32.
#pragma once

#include <functional>
#include <string_view>

#include "kernels/attention/attention.h"

namespace lockstep::cuda {

// The largest head that any of them takes, or an ArgumentError: their tiles hold whole heads.
inline constexpr int64_t kAttentionMaxHead = 256;

enum class AttentionKernels {
  kAuto,   // cuDNN's for large problems where it can, else flash where it can, else plain
  kPlain,  // tiles in f32, of any dtype, and heads of up to kAttentionMaxHead
  kFlash,  // or an ArgumentError
  kCudnn,  // as kAuto, but for small problems, too; an ArgumentError where the device has none
};

// The calling thread's choice: the innermost scope's, else
// LOCKSTEP_ATTENTION=auto|plain|flash|cudnn of the environment (read once; anything else is an
// InputError), else kAuto.
AttentionKernels CurrentAttentionKernels();

// Within its scope the thread's calls of attention, forward and backward, run these kernels. What
// one kernel saved, another can read.
class AttentionKernelsScope {
 public:
  explicit AttentionKernelsScope(AttentionKernels kernels);
  ~AttentionKernelsScope();
  AttentionKernelsScope(const AttentionKernelsScope&) = delete;
  AttentionKernelsScope& operator=(const AttentionKernelsScope&) = delete;

 private:
  const AttentionKernelsScope* previous_;
  AttentionKernels kernels_;
  friend AttentionKernels CurrentAttentionKernels();
};

// Holds no memory of its own: each call of attention makes the choice.
struct AttentionChoice {
  AttentionKernels kernels = AttentionKernels::kPlain;
  // Why not faster ones, unless these were requested, and what a library says of it; empty: there
  // are none.
  std::string_view why_slow = {}, reason = {};
};

// Which of kPlain, kFlash and kCudnn run for q [B, T, H, D]. Flash kernels take bf16 and f16 heads
// with D <= 128, a multiple of 8, and cuDNN's those of bf16; 64 and 128 run at full speed. `ours`:
// the call needs what cuDNN's graphs lack: our dropout, fewer queries than keys, or scores that are
// not plain. `why_no_cudnn` returns why the device has none, empty if it has; it is called last,
// since that takes seconds. So does making each cuDNN plan, hence the minimum size for kAuto. The
// choice depends only on dtype, sizes, the device and its libraries. (How cuDNN then runs a
// backward also depends on the limit of its workspace: cudnn_attention.h.)
inline constexpr int64_t kFlashMaxHead = 128;
inline constexpr double kCudnnMinFlops = 4e9;  // of forward, 2 B H T^2 D: some 10 us
AttentionChoice ChooseAttentionKernels(AttentionKernels wanted, const Tensor& q, bool ours,
                                       const std::function<std::string_view()>& why_no_cudnn);

// The low-level operations by flash kernels, on tensors for which they can be chosen, and by plain
// ones.
void FlashAttentionForward(Stream stream, const AttentionForwardArgs& args);
void FlashAttentionBackward(Stream stream, const AttentionBackwardArgs& args);
void PlainAttentionForward(Stream stream, const AttentionForwardArgs& args);
void PlainAttentionBackward(Stream stream, const AttentionBackwardArgs& args);

}  // namespace lockstep::cuda
