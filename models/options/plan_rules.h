// What a plan must keep to, in one table: read by the options, by a run that is prepared, and by
// the search for plans that fit in memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "models/options/config.h"

namespace lockstep::models {

// Whether the gradients of a sequence's parts (parallel.cp) are left to the sum over data ranks: in
// the library's order, where a reducer makes it.
bool SumsContextWithData(const RunConfig& config);

// Whether a rank has only a part of the model or of the samples' computation, unless there is only
// one: then an elastic run goes on from copies of the ranks' parts
// (models/train/elastic/state_copies.h).
bool DividesCopies(const ParallelOptions& parallel);

// Gradients in bf16 are rounded after each micro-batch, and whatever is below half a unit in the
// last place of the sum is lost; beyond this many micro-batches that is too much.
inline constexpr int64_t kMostSumsInBf16 = 8;

// A plan, as far as it is known.
struct PlanFacts {
  const RunConfig& config;
  // "parallel.ep = 3", with the source of the value if it is known.
  std::function<std::string(std::string_view key)> describe = [](std::string_view key) {
    return std::string(key);
  };
  // Of a run that is prepared, whose config.model is that of its weights; 0: not known yet.
  int64_t processes = 0;
  int64_t data_ranks = 0;
  int64_t micro_batches = 0;  // of a step, on all ranks together
  bool goes_on = false;       // an elastic run, with perhaps fewer processes than it began with
  bool is_run() const { return processes > 0; }
  bool has_rounds() const { return config.dist.outer_every > 0; }
};

struct PlanRule {
  std::string_view name;
  // The options that it is about, and then "". An error begins with where the strongest of them
  // comes from.
  std::array<std::string_view, 8> keys;
  // What is wrong and what to use instead, where "{parallel.ep}" stands for its description; "" if
  // the plan keeps the rule. Given facts.config.parallel, too.
  std::string (*refusal)(const PlanFacts& facts, const ParallelOptions& parallel);
  bool of_run = false;  // whether it is about a run that is prepared
};

// All rules, those about options first. What only the library can tell, such as whether a model has
// as many parts as a pipeline has stages, is asked of it (models/train/run_checks.h).
std::span<const PlanRule> PlanRules();
// Those about a run that is prepared.
std::span<const PlanRule> PlanRulesOfRuns();

// The first rule that the plan breaks, with its refusal in `why` unless that is null; null: none.
const PlanRule* BrokenRule(const PlanFacts& facts, std::string* why = nullptr);

// Throws InputError (Options::Fail) for the first rule that the plan breaks.
void CheckPlan(const Options& options, PlanFacts facts);

}  // namespace lockstep::models
