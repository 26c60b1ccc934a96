// Context parallelism of a model of the library's layers.
#pragma once

#include "core/module.h"
#include "dist/context/context_ranks.h"

namespace lockstep::dist {

// Replaces modules so that the ranks compute each sequence together:
//   auto ranks = std::make_shared<dist::ContextRanks>(cp_group.get(), /*pairs=*/4);
//   dist::ParallelizeContext(model, ranks);
// These are nn::Linear, BranchLinear, with adapters (nn::AddLora) or without, Embedding, Dropout,
// LmHead, ResidualNorm, BranchNorm, StreamMix and RmsNorm; every nn::CausalSelfAttention attends
// through the ranks, and every nn::MixtureOfExperts routes chunks (dist/context/context_mixture.h).
// The model is used as before, with its parameters: every rank gives it the same whole samples, of
// a length that the chunks divide, and gets the loss of the whole batch, whose gradients are
// complete: to be summed over data-parallel ranks only. (Where ranks are apart, each gets the loss
// of its chunks and their gradients, to be summed over all ranks.) With one rank and several pairs
// it is the same model, to the bit. Under NoGrad nothing is split.
//
// With tensor parallelism, after dist::Parallelize by the ranks that ContextRanks has within: then
// it replaces the modules that took the place of those.
//
// To be called before an optimizer or anything else holds a module. Throws ArgumentError naming the
// parameter if it belongs to another kind of module.
void ParallelizeContext(Module& model, const ContextRanksPtr& ranks);

}  // namespace lockstep::dist
