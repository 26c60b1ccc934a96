// Mixtures of experts whose tokens are a rank's chunks of a sequence.
#pragma once

#include "dist/context/context_ranks.h"
#include "dist/expert/distributed_experts.h"
#include "nn/mixture/mixture_of_experts.h"

namespace lockstep::dist {

// Makes the mixture take [own() B, T / chunks, C], this rank's chunks concatenated along dimension
// 0, and route each of them by itself: so there is a product for each expert and chunk, whose sizes
// do not depend on ranks, and the gradients of router and experts are sums over the chunks, as
// those of other layers. What all tokens have (nn::MixtureOfExperts::Shared) is computed by such
// layers. The balance loss is that of whole sequences: the loads of their chunks, [B, E] each, are
// gathered. So are the loads for the training loop, unless ranks are apart, whose loads are added
// with those of other samples. Under NoGrad nothing changes.
//
// Experts may be a tensor-parallel rank's (TensorExperts), which routes whole chunks, and split
// across ranks (ShareExperts): then an expert has a product for each rank whose rows it gets, too.
// Its gradient is added in the same order as without: first over the chunks of a sequence, on
// whatever ranks these are, and then over the sequences of the ranks that split the experts.
// `same`: of the ranks, those that have the same experts (WithSameExperts).
//
// The mixture's router is an nn::ExpertRouter and its experts are nn::Experts or
// DistributedExperts, as they are or in a TensorExperts; ArgumentError otherwise. Returns the
// parameters whose gradients are summed like this.
std::vector<std::shared_ptr<Parameter>> RouteChunks(nn::MixtureOfExperts& mixture,
                                                    const ContextRanksPtr& ranks,
                                                    const TensorRanksPtr& same);

// The context-parallel ranks that hold the same experts as this one, when runs of neighbouring
// ranks split the experts. For them, the chunks of a run form one subtree of ContextRanks' sum.
// Collective. Throws ArgumentError where ranks are apart, and unless ShareExperts was given as
// `sequence` the ranks that are also among those of its group: others have other experts, whose
// gradients would be added to this rank's.
TensorRanksPtr WithSameExperts(const ContextRanks& ranks, const DistributedExperts& experts);

}  // namespace lockstep::dist
