#include "kernels/attention/flash_attention.h"

#include <cstdlib>
#include <string>

#include "core/kernel_choices.h"
#include "core/philox.h"

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
                                       const std::function<std::string()>& why_no_cudnn) {
  if (wanted == AttentionKernels::kPlain) return {wanted, ""};
  const int64_t d = q.dim(-1);
  const bool narrow = q.dtype() == DType::kBF16 || q.dtype() == DType::kF16;
  const bool fits = narrow && d <= kFlashMaxHead && d % 8 == 0;
  LS_CHECK(fits || wanted != AttentionKernels::kFlash,
           "attention by flash kernels (LOCKSTEP_ATTENTION=flash) takes 16-bit heads of a multiple "
           "of 8 up to ",
           kFlashMaxHead, " numbers, got ", q.Describe(), ": choose auto");
  if (!fits) {
    // There are no faster kernels for f32.
    return {
        AttentionKernels::kPlain,
        narrow ? StrCat("tensor cores take heads of a multiple of 8 numbers, up to ", kFlashMaxHead)
               : ""};
  }
  if (wanted == AttentionKernels::kFlash || ours || q.numel() == 0) {
    return {AttentionKernels::kFlash, ""};
  }
  const double flops = 2.0 * static_cast<double>(q.numel()) * static_cast<double>(q.dim(1));
  if (wanted == AttentionKernels::kAuto && flops < kCudnnMinFlops) {
    return {AttentionKernels::kFlash, ""};
  }
  const std::string why_not =
      q.dtype() == DType::kBF16 ? why_no_cudnn() : "its graphs are made for bf16";
  LS_CHECK(wanted != AttentionKernels::kCudnn || why_not.empty(),
           "attention by cuDNN (LOCKSTEP_ATTENTION=cudnn) cannot run here: ", why_not);
  if (why_not.empty()) return {AttentionKernels::kCudnn, ""};
  return {AttentionKernels::kFlash, StrCat("cuDNN's attention cannot run here: ", why_not)};
}

void NoteAttentionChoice(const char* op, const Tensor& q, const Tensor& k,
                         const std::string& kernel, const std::string& why_slow) {
  const int64_t b = q.dim(0), t = q.dim(1), h = q.dim(2), g = k.dim(2), d = q.dim(3);
  const std::vector<int64_t> problem{b,
                                     t,
                                     h,
                                     g,
                                     d,
                                     static_cast<int64_t>(q.dtype()),
                                     static_cast<int64_t>(HashName(kernel)),
                                     static_cast<int64_t>(HashName(why_slow))};
  NoteKernelChoice(op, problem, [&] {
    return KernelChoice{.problem = StrCat(q.dtype(), ", B ", b, ", T ", t, ", H ", h,
                                          g == h ? std::string() : StrCat(" over ", g), ", D ", d),
                        .kernel = kernel,
                        .why_slow = why_slow};
  });
}

}  // namespace lockstep::cuda
