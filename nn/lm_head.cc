#include "nn/lm_head.h"

#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace lockstep::nn {

namespace {

int64_t CheckChunk(int64_t loss_chunk) {
  LS_CHECK(loss_chunk >= 0, "LmHead needs a loss_chunk of at least 0, got ", loss_chunk);
  return loss_chunk;
}

double CheckSoftcap(double softcap) {
  LS_CHECK(softcap >= 0, "LmHead needs a softcap of at least 0 (0: none), got ", softcap);
  return softcap;
}

}  // namespace

LmHead::LmHead(int64_t n_embd, int64_t vocab_size, Initializer init, int64_t loss_chunk,
               double softcap)
    : loss_chunk_(CheckChunk(loss_chunk)), softcap_(CheckSoftcap(softcap)) {
  LS_CHECK(n_embd > 0 && vocab_size > 0, "LmHead needs positive sizes, got n_embd = ", n_embd,
           " and vocab_size = ", vocab_size);
  weight_ = AddParameter("weight", {vocab_size, n_embd}, std::move(init), /*decay=*/true);
}

LmHead::LmHead(std::shared_ptr<Parameter> weight, int64_t loss_chunk, double softcap)
    : loss_chunk_(CheckChunk(loss_chunk)),
      softcap_(CheckSoftcap(softcap)),
      weight_(std::move(weight)),
      tied_(std::make_shared<TiedWeight>(weight_)) {
  ShareParameter("weight", weight_);
}

Tensor LmHead::Forward(const Tensor& x, const Tensor& targets) {
  const Tensor weight = tied_ ? tied_->value() : weight_->value();
  if (!targets.defined()) return ops::CappedLogits(x, weight, softcap_);
  return ops::LinearCrossEntropy(x, weight, targets, Reduction::kSum, loss_chunk_, -1, softcap_);
}

}  // namespace lockstep::nn
