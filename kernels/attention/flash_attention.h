// Which of CUDA's attention kernels run: flash attention on tensor cores, or the plain ones in f32.
#pragma once

#include "kernels/attention/attention.h"

namespace lockstep::cuda {

enum class AttentionKernels {
  kAuto,   // flash where there is one for the dtype and size of heads
  kPlain,  // tiles in f32, of any dtype and size
  kFlash,  // or an ArgumentError
};

// The calling thread's choice: the innermost scope's, else LOCKSTEP_ATTENTION=auto|plain|flash of
// the environment (read once; anything else is an InputError), else kAuto.
AttentionKernels CurrentAttentionKernels();

// Within its scope the thread's calls of attention, forward and backward, run these kernels. What
// one saved the other can read.
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

// Flash kernels take bf16 heads of D <= 128 numbers, a multiple of 8; of full speed are 64 and 128.
// The choice depends on nothing but dtype and D, so neither do the bits.
inline constexpr int64_t kFlashMaxHead = 128;
bool UseFlashAttention(const Tensor& q);

// The low-level operations by flash kernels, on tensors for which UseFlashAttention is true.
void FlashAttentionForward(Stream stream, const AttentionForwardArgs& args);
void FlashAttentionBackward(Stream stream, const AttentionBackwardArgs& args);

}  // namespace lockstep::cuda
