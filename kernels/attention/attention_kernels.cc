#include "kernels/attention/attention_kernels.h"

#include <cstdlib>
#include <string>

#include "core/error.h"

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

AttentionChoice ChooseAttentionKernels(AttentionKernels wanted, const Tensor& q, bool ours,
                                       const std::function<std::string_view()>& why_no_cudnn) {
  if (wanted == AttentionKernels::kPlain) return {wanted};
  const int64_t d = q.dim(-1);
  const bool narrow = q.dtype() == DType::kBF16 || q.dtype() == DType::kF16;
  const bool fits = narrow && d <= kFlashMaxHead && d % 8 == 0;
  LS_CHECK(fits || wanted != AttentionKernels::kFlash,
           "attention by flash kernels (LOCKSTEP_ATTENTION=flash) takes 16-bit heads of a multiple "
           "of 8 up to ",
           kFlashMaxHead, " numbers, got ", q.Describe(), ": choose auto");
  if (!fits) {
    // There are no faster kernels for f32.
    static_assert(kFlashMaxHead == 128);
    return {AttentionKernels::kPlain,
            narrow ? "tensor cores take heads of a multiple of 8 numbers, up to 128" : ""};
  }
  if (wanted == AttentionKernels::kFlash || ours || q.numel() == 0) {
    return {AttentionKernels::kFlash};
  }
  const double flops = 2.0 * static_cast<double>(q.numel()) * static_cast<double>(q.dim(1));
  if (wanted == AttentionKernels::kAuto && flops < kCudnnMinFlops) {
    return {AttentionKernels::kFlash};
  }
  const std::string_view why_not =
      q.dtype() == DType::kBF16 ? why_no_cudnn() : "its graphs are made for bf16";
  LS_CHECK(wanted != AttentionKernels::kCudnn || why_not.empty(),
           "attention by cuDNN (LOCKSTEP_ATTENTION=cudnn) cannot run here: ", why_not);
  if (why_not.empty()) return {AttentionKernels::kCudnn};
  return {AttentionKernels::kFlash, "cuDNN's attention cannot run here", why_not};
}

}  // namespace lockstep::cuda
