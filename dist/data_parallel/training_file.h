// The state of a training loop of your own in a file, to continue from.
#pragma once

#include <cstdint>
#include <string>

#include "core/module.h"
#include "core/step_state.h"
#include "dist/data_parallel/data_ranks.h"
#include "optim/optimizer.h"

namespace lockstep::dist {

// Saves everything that later steps depend on: weights and buffers of the model ("model.<name>"),
// the state of its optimizer ("optimizer.<name>"), the number of steps, and the loss scale, in one
// safetensors file. Its bytes do not depend on how many ranks there are and what is sharded across
// them, so any others may continue: with DataParallel, FullyShard, Parallelize or a pipeline, or on
// a single rank.
//
// Collective, after the optimizer's Step. Rank 0 writes, and needs memory on the host for one whole
// tensor at a time; all ranks return once the file is complete. A crash leaves the file that was
// there before. Throws ArgumentError within a step that has not been updated; on all ranks IoError
// if rank 0 could not write.
//
// Where layers or stages are split across ranks, `all` are all ranks of the run; null: a single
// process.
void SaveTraining(const std::string& path, DataRanks& ranks, const Module& model,
                  const optim::Optimizer& optimizer, const StepState& state);
void SaveTraining(const std::string& path, ProcessGroup* all, const Module& model,
                  const optim::Optimizer& optimizer, const StepState& state);

// Restores all of it, and returns the number of the next step. Each rank reads the file, and keeps
// its parts. To be called between steps, once the model is sharded or with DataParallel. Throws
// IoError if there is no such file; InputError, naming file and tensor, if it does not fit the
// model or the optimizer: nothing has changed then.
int64_t LoadTraining(const std::string& path, Module& model, optim::Optimizer& optimizer,
                     StepState& state);

}  // namespace lockstep::dist
