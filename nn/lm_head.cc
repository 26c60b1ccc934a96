#include "nn/lm_head.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/concat/concat.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace lockstep::nn {

namespace {

thread_local bool in_row_loss_scope = false;

int64_t CheckChunk(int64_t loss_chunk) {
  LS_CHECK(loss_chunk >= 0, "LmHead needs a loss_chunk of at least 0, got ", loss_chunk);
  return loss_chunk;
}

double CheckNotNegative(const char* name, double value) {
  LS_CHECK(value >= 0, "LmHead needs a ", name, " of at least 0 (0: none), got ", value);
  return value;
}

}  // namespace

RowLossScope::RowLossScope() : previous_(std::exchange(in_row_loss_scope, true)) {}

RowLossScope::~RowLossScope() { in_row_loss_scope = previous_; }

LmHead::LmHead(int64_t n_embd, int64_t vocab_size, Initializer init, int64_t loss_chunk,
               double softcap, double z_loss)
    : loss_chunk_(CheckChunk(loss_chunk)),
      softcap_(CheckNotNegative("softcap", softcap)),
      z_loss_(CheckNotNegative("z_loss", z_loss)) {
  LS_CHECK(n_embd > 0 && vocab_size > 0, "LmHead needs positive sizes, got n_embd = ", n_embd,
           " and vocab_size = ", vocab_size);
  weight_ = AddParameter("weight", {vocab_size, n_embd}, std::move(init), /*decay=*/true);
}

LmHead::LmHead(std::shared_ptr<Parameter> weight, int64_t loss_chunk, double softcap, double z_loss)
    : loss_chunk_(CheckChunk(loss_chunk)),
      softcap_(CheckNotNegative("softcap", softcap)),
      z_loss_(CheckNotNegative("z_loss", z_loss)),
      weight_(std::move(weight)),
      tied_(std::make_shared<TiedWeight>(weight_)) {
  ShareParameter("weight", weight_);
}

Tensor LmHead::Forward(const Tensor& x, const Tensor& targets) {
  const Tensor weight = tied_ ? tied_->value() : weight_->value();
  if (!targets.defined()) return ops::CappedLogits(x, weight, softcap_);
  if (in_row_loss_scope) return RowLosses(x, weight, targets);
  return ops::LinearCrossEntropy(x, weight, targets, Reduction::kSum, loss_chunk_, -1, softcap_,
                                 GradEnabled() ? z_loss_ : 0);
}

// A sum for each row, so that gradients are computed while logits exist, and only then weighted by
// what the objective makes of the rows. The graph keeps the logits of all rows that are not
// chunked: so rows are, unless all of them together fit into a chunk.
Tensor LmHead::RowLosses(const Tensor& x, const Tensor& weight, const Tensor& targets) const {
  LS_CHECK(x.ndim() == 3 && targets.ndim() == 2 && x.dim(0) > 0,
           "the losses of rows need x [B, T, C] and targets [B, T], got ", x.Describe(), " and ",
           targets.Describe());
  int64_t chunk = loss_chunk_;
  if (targets.numel() > chunk) chunk = std::min(chunk, (targets.dim(1) + 1) / 2);
  std::vector<Tensor> losses;
  for (int64_t row = 0; row < x.dim(0); ++row) {
    losses.push_back(ops::LinearCrossEntropy(x.Slice(0, row, row + 1), weight,
                                             targets.Slice(0, row, row + 1), Reduction::kSum, chunk,
                                             -1, softcap_));
  }
  return ops::Stack(losses);
}

}  // namespace lockstep::nn
