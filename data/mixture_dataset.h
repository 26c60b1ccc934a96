// Data sets that are made of others: mixtures, and those with files for validation.
#pragma once

#include <functional>
#include <string>

#include "data/dataset.h"

namespace lockstep::data {

// The sources of options.mix, each opened by `open` with its path: one after the other for
// training, and likewise for validation. If a source does not learn all of its tokens, as with
// conversations, each source begins a new window of block_size in the validation stream. Throws
// InputError for sources whose tokenizers differ, or that are too small.
Dataset OpenMixture(const DatasetOptions& options,
                    const std::function<Dataset(const DatasetOptions& source)>& open);

// Gives a data set that holds nothing out (val_fraction = 0) the validation tokens of files, each
// opened by `open` with its path: `paths` are files or patterns of them, with commas between them.
// They are encoded by the data set's tokenizer. Throws InputError if the data set has validation
// tokens already, which names of its files tell; for a folder; and for files that are named twice,
// too small, or do not fit.
void OpenValidation(const std::string& paths, const DatasetOptions& options,
                    const std::function<Dataset(const DatasetOptions& file)>& open,
                    Dataset* dataset);

}  // namespace lockstep::data
