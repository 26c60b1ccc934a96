// Notes on runs that are valid, but probably not intended.
#pragma once

#include <string>
#include <vector>

#include "models/options/options.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// On a plan that gives the right weights, but gains nothing; "": none.
std::string NoteOnPlan(const RunSetup& setup);
// On a warm-up that takes most of the run; "": none.
std::string NoteOnWarmup(const Options& options, const RunSetup& setup);
// A ChangedPast: of the learning rate and of weight decay. "" also where a run is as long as its
// train.epochs, which is not known here.
std::string ChangesOfPast(const RunConfig& before, const RunConfig& now, int64_t step);
// All that there are of a run: these, and those on texts that are trained on, though their names
// say that they are held out; on a learning rate with which a resumed run goes on far above that of
// its last step, or that has not decayed when the run ends; on a default learning rate, where
// weights are tuned on conversations or pairs.
std::vector<std::string> NotesOn(const Options& options, const RunSetup& setup);

}  // namespace lockstep::models
