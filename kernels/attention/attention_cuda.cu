// Which attention kernels a call runs.
#include <array>
#include <span>
#include <string>

#include "core/kernel_choices.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/cudnn_attention.h"

namespace lockstep::cuda {
namespace {

template <class Args>
struct AttentionFunctions {
  const char* op;
  std::string (*cudnn)(Stream, const Args&, std::string*);
  void (*flash)(Stream, const Args&);
  void (*plain)(Stream, const Args&);
};

// What tells a call's choice from others'; `refused`: cuDNN did not run it.
template <class Args>
std::array<int64_t, 9> ProblemOf(const Args& args, AttentionKernels chosen, bool refused) {
  return {args.q.dim(0),
          args.q.dim(1),
          args.q.dim(2),
          args.k.dim(2),
          args.q.dim(3),
          static_cast<int64_t>(args.q.dtype()),
          args.q.device().index,
          static_cast<int64_t>(chosen),
          refused};
}

template <class Args>
void Note(const char* op, const Args& args, std::span<const int64_t> problem, std::string kernel,
          const AttentionChoice& choice) {
  const int64_t heads = args.q.dim(2), kv_heads = args.k.dim(2);
  NoteKernelChoice(
      op, problem,
      {.problem = StrCat(args.q.dtype(), ", B ", args.q.dim(0), ", T ", args.q.dim(1), ", H ",
                         heads, heads == kv_heads ? std::string() : StrCat(" over ", kv_heads),
                         ", D ", args.q.dim(3)),
       .kernel = std::move(kernel),
       .why_slow = StrCat(choice.why_slow, choice.reason.empty() ? "" : ": ", choice.reason)});
}

// Takes neither memory nor a lock to choose and to note, unless the problem is new.
template <class Args>
void RunChosen(const AttentionFunctions<Args>& functions, Stream stream, const Args& args) {
  // Our dropout, fewer queries than keys and rules for scores are not in cuDNN's graphs.
  const bool ours =
      args.dropout.step_values.defined() || args.q.dim(1) != args.k.dim(1) || !args.scores.plain();
  AttentionChoice chosen = ChooseAttentionKernels(CurrentAttentionKernels(), args.q, ours,
                                                  [&] { return WhyNoCudnnAttention(stream); });
  auto problem = ProblemOf(args, chosen.kernels, false);
  bool is_new = IsNewProblem(functions.op, problem);
  std::string kernel, why_not;
  if (chosen.kernels == AttentionKernels::kCudnn) {
    why_not = functions.cudnn(stream, args, is_new ? &kernel : nullptr);
    if (!why_not.empty()) {
      chosen = {AttentionKernels::kFlash, "cuDNN's cannot do it", why_not};
      problem = ProblemOf(args, chosen.kernels, true);
      is_new = IsNewProblem(functions.op, problem);
    }
  }
  if (chosen.kernels == AttentionKernels::kFlash) {
    functions.flash(stream, args);
    kernel = "flash";
  } else if (chosen.kernels == AttentionKernels::kPlain) {
    functions.plain(stream, args);
    kernel = "plain";
  }
  if (is_new) Note(functions.op, args, problem, std::move(kernel), chosen);
}

void AttentionForwardCuda(Stream stream, const AttentionForwardArgs& args) {
  RunChosen(
      {"attention_forward", CudnnAttentionForward, FlashAttentionForward, PlainAttentionForward},
      stream, args);
}

void AttentionBackwardCuda(Stream stream, const AttentionBackwardArgs& args) {
  RunChosen({"attention_backward", CudnnAttentionBackward, FlashAttentionBackward,
             PlainAttentionBackward},
            stream, args);
}

LS_REGISTER(attention_forward, DeviceType::kCuda, AttentionForwardCuda);
LS_REGISTER(attention_backward, DeviceType::kCuda, AttentionBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
