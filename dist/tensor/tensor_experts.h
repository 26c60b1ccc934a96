// Mixtures of experts whose layers ranks compute together.
#pragma once

#include <memory>

#include "dist/tensor/tensor_ranks.h"
#include "nn/mixture/mixture_of_experts.h"

namespace lockstep::dist {

// Every rank has an equal run of the experts. As the ranks of a layer have the same samples, each
// routes the whole sequence, computes the rows of its experts, and gets those of the others; it
// then continues with its part of the sequence. So there is a product per expert, as in a single
// process, and its bits do not depend on the ranks, nor on TensorRanks::parts(). Router and shared
// expert are whole on every rank, which computes them for the whole sequence, with whole gradients.
//
// In the place of an nn::Experts: rows [R, C] and offsets, of all experts, on every rank -> [R, C].
class TensorExperts : public nn::ExpertsLayer {
 public:
  // The weights of `experts` are this rank's part.
  TensorExperts(std::shared_ptr<nn::Experts> experts, TensorRanksPtr ranks);

  // This rank's, which may be split across further ranks (ShareExperts).
  Child<nn::ExpertsLayer>& own() { return own_; }
  void Begin(const Tensor& rows, const Tensor& offsets) override;

 protected:
  Tensor Forward(const Tensor& rows, const Tensor& offsets) override;

 private:
  const TensorRanksPtr ranks_;
  Child<nn::ExpertsLayer> own_;
};

// Throws ArgumentError if adapters of experts in the module have dropout: its mask counts the rows
// of a micro-batch, of which a rank, or a chunk of a sequence, has only some.
void RefuseDropoutOfExperts(Module& module);

// Makes the mixture take and give parts of the sequence, [B, T / size, C], but under NoGrad.
void TakeParts(nn::MixtureOfExperts& mixture, const TensorRanksPtr& ranks);

}  // namespace lockstep::dist
