// The output head of a language model.
#pragma once

#include <memory>

#include "core/module.h"
#include "nn/tied_weight.h"

namespace lockstep::nn {

using LmHeadLayer = ModuleOf<Tensor(const Tensor& x, const Tensor& targets)>;

// While it lives, heads in this thread's forwards return one loss for each row of the batch instead
// of one sum: [B] for targets [B, T], each the negative log-likelihood of the row's targets, for
// objectives that weigh or compare whole sequences. The bits of a row's loss do not depend on the
// other rows' values. A model whose head is split across ranks still returns one sum.
class RowLossScope {
 public:
  RowLossScope();
  ~RowLossScope();
  RowLossScope(const RowLossScope&) = delete;
  RowLossScope& operator=(const RowLossScope&) = delete;

 private:
  const bool previous_;
};

// x [..., n_embd]. If `targets` is undefined, the result is the logits, x weight^T [...,
// vocab_size]; otherwise the sum of the cross entropies with the targets, i32 or i64 [...] and -1
// for none: a scalar, f64 for f64, else f32. For it, the logits of at most `loss_chunk` rows are in
// memory at once (0: no limit): ops::LinearCrossEntropy. With a `softcap` > 0 logits are within
// (-softcap, softcap): ops::Softcap. With a `z_loss` > 0 losses that have gradients are larger by
// ops::SoftmaxCrossEntropy's; those under NoGrad, which measure a model, are not. In a RowLossScope
// the loss is one for each row, without z_loss. Parameter: weight [vocab_size, n_embd] (decays).
class LmHead : public LmHeadLayer, public ReadsTiedWeight {
 public:
  LmHead(int64_t n_embd, int64_t vocab_size, Initializer init, int64_t loss_chunk,
         double softcap = 0, double z_loss = 0);
  // Tied: with the weight of another module, the token embedding. Replacing that module unties it,
  // unless the head is replaced, too.
  LmHead(std::shared_ptr<Parameter> weight, int64_t loss_chunk, double softcap = 0,
         double z_loss = 0);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  std::shared_ptr<TiedWeight> tied() const override { return tied_; }
  int64_t loss_chunk() const { return loss_chunk_; }
  double softcap() const { return softcap_; }
  double z_loss() const { return z_loss_; }

 protected:
  Tensor Forward(const Tensor& x, const Tensor& targets) override;

 private:
  Tensor RowLosses(const Tensor& x, const Tensor& weight, const Tensor& targets) const;

  int64_t loss_chunk_;
  double softcap_, z_loss_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<TiedWeight> tied_;  // null: the weight is its own
};

}  // namespace lockstep::nn
