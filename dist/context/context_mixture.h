// Mixtures of experts whose tokens are a rank's chunks of a sequence.
#pragma once

#include "dist/context/context_ranks.h"
#include "nn/mixture/mixture_of_experts.h"

namespace lockstep::dist {

// Makes the mixture take [own() B, T / chunks, C], this rank's chunks below each other, and route
// each of them by itself: so there is a product for each expert and chunk, whose sizes do not
// depend on ranks, and the gradients of router and experts are sums over the chunks, as those of
// other layers. What all tokens have (nn::MixtureOfExperts::Shared) is computed by such layers. The
// balance loss is that of whole sequences: the loads of their chunks, [B, E] each, are gathered. So
// are the loads for the training loop, unless ranks are apart, whose loads are added with those of
// other samples. Under NoGrad nothing changes.
//
// The mixture's router is an nn::ExpertRouter and its experts are nn::Experts, all on every rank;
// ArgumentError otherwise. Returns the parameters whose gradients are summed like this.
std::vector<std::shared_ptr<Parameter>> RouteChunks(nn::MixtureOfExperts& mixture,
                                                    const ContextRanksPtr& ranks);

}  // namespace lockstep::dist
