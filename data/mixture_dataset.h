// A data set that mixes others.
#pragma once

#include <functional>

#include "data/dataset.h"

namespace lockstep::data {

// The sources of options.mix, each opened by `open` with its path: one after the other for
// training, and likewise for validation. If a source does not learn all of its tokens, as with
// conversations, each source begins a new window of block_size in the validation stream. Throws
// InputError for sources whose tokenizers differ, or that are too small.
Dataset OpenMixture(const DatasetOptions& options,
                    const std::function<Dataset(const DatasetOptions& source)>& open);

}  // namespace lockstep::data
