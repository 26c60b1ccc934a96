#include "kernels/attention/flash_attention.h"

#include <cstdlib>
#include <string>

namespace lockstep::cuda {
namespace {

thread_local const AttentionKernelsScope* current_scope = nullptr;

AttentionKernels FromEnvironment() {
  const char* value = std::getenv("LOCKSTEP_ATTENTION");
  const std::string text = value == nullptr ? "auto" : value;
  if (text == "auto") return AttentionKernels::kAuto;
  if (text == "plain") return AttentionKernels::kPlain;
  if (text == "flash") return AttentionKernels::kFlash;
  throw InputError(StrCat("LOCKSTEP_ATTENTION must be auto, plain or flash, not '", text, "'"));
}

}  // namespace

AttentionKernels CurrentAttentionKernels() {
  if (current_scope != nullptr) return current_scope->kernels_;
  static const AttentionKernels from_environment = FromEnvironment();
  return from_environment;
}

AttentionKernelsScope::AttentionKernelsScope(AttentionKernels kernels)
    : previous_(current_scope), kernels_(kernels) {
  current_scope = this;
}
AttentionKernelsScope::~AttentionKernelsScope() { current_scope = previous_; }

bool UseFlashAttention(const Tensor& q) {
  const int64_t d = q.dim(-1);
  const bool possible = q.dtype() == DType::kBF16 && d <= kFlashMaxHead && d % 8 == 0;
  const AttentionKernels kernels = CurrentAttentionKernels();
  LS_CHECK(
      possible || kernels != AttentionKernels::kFlash,
      "attention by flash kernels (LOCKSTEP_ATTENTION=flash) takes bf16 heads of a multiple of "
      "8 up to ",
      kFlashMaxHead, " numbers, got ", q.Describe(), ": choose auto");
  return possible && kernels != AttentionKernels::kPlain;
}

}  // namespace lockstep::cuda
