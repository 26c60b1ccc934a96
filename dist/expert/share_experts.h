// Expert parallelism: the experts of mixtures are split across ranks.
#pragma once

#include <memory>

#include "core/module.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Lepikhin et al., "GShard" (2020). Gives rank r of the group an equal run of the experts of every
// mixture below the module (nn::MixtureOfExperts): its weights are [E / size, ...], and it never
// has the others'. Tokens go to their experts, sorted once, and come back, by all-to-alls of uneven
// parts; the results of a token are added in the order of its gates, as before. Everything else
// stays whole on each rank, which has its own samples:
//
//   const dist::Mesh mesh({.ep = 4}, world.rank(), world.size());
//   const auto data = world.Group(), experts = world.Group(mesh, {"ep"}),
//              copies = world.Group(mesh, {"edp"});
//   dist::ShareExperts(model, experts);
//   model.Materialize(...);  // fills this rank's parts, with the bits that they have in the whole
//   dist::ExpertParallel parallel(data.get(), copies.get(), model);  // instead of DataParallel
//
// Forward and backward become collective over the group: every rank makes equally many. The host
// waits for the loads, which it must know to send rows.
//
// `sequence`: those of the group that compute this rank's sequences together, if they do
// (ParallelizeContext, afterwards, which throws ArgumentError if it was not told of them); null:
// only this rank. Where these are all of the group, the sum over data-parallel ranks need not know
// of experts: all of these ranks have the same part of the model.
//
// To be called before an optimizer or anything else holds a parameter, whether or not they have
// memory. The number of ranks is a power of two. Throws ArgumentError, naming the module or
// parameter, where it does not divide the experts, where experts are no nn::Experts of
// nn::GroupedLinears, after ParallelizeContext, and if there are no mixtures. A null group, or one
// of a single rank, changes nothing.
void ShareExperts(Module& model, const std::shared_ptr<ProcessGroup>& group,
                  const std::shared_ptr<ProcessGroup>& sequence = nullptr);

}  // namespace lockstep::dist
