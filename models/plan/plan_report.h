// What a search for plans found, in words, as a configuration, and as a picture.
#pragma once

#include <string>

#include "models/plan/search.h"

namespace lockstep::models {

// The model, the cluster and what was tried; a row for each plan, with what its step spends its
// time on; why the others fail; and what `tokens` cost with the best one (0: not said). `seconds`:
// how long the search took.
std::string ReportOf(const RunSetup& setup, const Cluster& cluster, const SearchResult& found,
                     double tokens, double seconds);

// The config.toml of train_gpt for this plan, with as many steps as `tokens` need; 0: as they were.
std::string TomlOf(const RunSetup& setup, const Layout& layout, double tokens);

// "--train.batch_size=1 --parallel.shard=full": what makes that configuration when it is added to
// the options that were given.
std::string ArgumentsOf(const RunSetup& setup, const Layout& layout, double tokens);

// Gives a run the plan of another: what a search for plans chooses.
void TakePlan(const RunConfig& from, RunConfig* to);

// A page with the step of a rank, or of a pipeline's ranks.
std::string PictureOf(const RunSetup& setup, const Cluster& cluster, const FoundPlan& plan);

}  // namespace lockstep::models
