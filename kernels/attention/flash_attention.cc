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
  if (text == "cudnn") return AttentionKernels::kCudnn;
  throw InputError(
      StrCat("LOCKSTEP_ATTENTION must be auto, plain, flash or cudnn, not '", text, "'"));
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

AttentionKernels ChooseAttentionKernels(AttentionKernels wanted, const Tensor& q, bool dropout,
                                        const std::function<std::string()>& why_no_cudnn) {
  if (wanted == AttentionKernels::kPlain) return wanted;
  const int64_t d = q.dim(-1);
  const bool fits = q.dtype() == DType::kBF16 && d <= kFlashMaxHead && d % 8 == 0;
  LS_CHECK(
      fits || wanted != AttentionKernels::kFlash,
      "attention by flash kernels (LOCKSTEP_ATTENTION=flash) takes bf16 heads of a multiple of "
      "8 up to ",
      kFlashMaxHead, " numbers, got ", q.Describe(), ": choose auto");
  if (!fits) return AttentionKernels::kPlain;
  if (wanted == AttentionKernels::kFlash || dropout || q.numel() == 0) {
    return AttentionKernels::kFlash;
  }
  const double flops = 2.0 * static_cast<double>(q.numel()) * static_cast<double>(q.dim(1));
  if (wanted == AttentionKernels::kAuto && flops < kCudnnMinFlops) return AttentionKernels::kFlash;
  const std::string why_not = why_no_cudnn();
  LS_CHECK(wanted != AttentionKernels::kCudnn || why_not.empty(),
           "attention by cuDNN (LOCKSTEP_ATTENTION=cudnn) cannot run here: ", why_not);
  return why_not.empty() ? AttentionKernels::kCudnn : AttentionKernels::kFlash;
}

}  // namespace lockstep::cuda
