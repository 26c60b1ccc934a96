// Cuts a model's parts into stages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/parameter.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Cuts parts, in their order, into runs of at least one part, so that the most expensive run costs
// as little as possible, and among such cuts the second most expensive, and so on. Stage s has the
// parts [cut[s], cut[s + 1]). Throws ArgumentError unless there is a part for each stage and no
// cost is negative.
std::vector<int64_t> CutByCost(std::span<const double> costs, int stages);

// Gives every parameter of a model to the pipeline's rank that has its stage: there it is whole,
// and elsewhere it has no elements (an empty range, of axis "pp"), no memory, and no state in an
// optimizer. WholeOf, on all ranks, brings it from there; norms are those of the whole model.
//
// `rank_of`: the rank of each of `parameters`, which are all parameters of the model, in its order.
// `copy_of`: a second rank that has the whole of it, as of a tied weight, -1 for none (empty: of
// none): it makes the same updates, and norms count only the first. To be called before the
// parameters have memory, for device `ranks->device()`, and before Parallelize and FullyShard. The
// group serves the parameters as long as they live; null: one rank, which has all.
void PlaceParameters(std::shared_ptr<ProcessGroup> ranks,
                     std::span<const std::shared_ptr<Parameter>> parameters,
                     std::span<const int> rank_of, std::span<const int> copy_of = {});

}  // namespace lockstep::dist
