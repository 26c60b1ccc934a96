#include "models/train/budget/budget.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "models/options/depth_laws.h"

namespace lockstep::models {
namespace {

// R* of Muennighoff et al.: how many repetitions are worth anything, and how many times the
// parameters that the distinct tokens can fill.
constexpr double kWorthOfTokens = 15.39, kWorthOfParameters = 5.31;
// More passes than that teach nothing, and a model learns them by heart.
constexpr double kMostPasses = 1 + kWorthOfTokens;

// What `used` is worth where only `distinct` is there without repeating: each repetition adds less,
// and all of them together at most `half_life` times as much.
double Worth(double used, double distinct, double half_life) {
  if (used <= distinct) return used;
  return distinct * (1 + half_life * (1 - std::exp(-(used / distinct - 1) / half_life)));
}

double SpeedOf(const std::vector<Speed>& speeds, double flops_per_token) {
  LS_CHECK(!speeds.empty(), "a budget of seconds needs measured speeds");
  const auto above = std::ranges::lower_bound(speeds, flops_per_token, {}, &Speed::flops_per_token);
  if (above == speeds.begin()) return above->flops_per_second;
  const auto below = std::prev(above);
  if (above == speeds.end()) return below->flops_per_second;
  const double share = std::log(flops_per_token / below->flops_per_token) /
                       std::log(above->flops_per_token / below->flops_per_token);
  return std::lerp(below->flops_per_second, above->flops_per_second, share);
}

Choice ChoiceOf(const Budget& budget, const Means& means, int64_t depth) {
  const double parameters = ParametersOf(depth, means.vocab_size);
  const double flops = FlopsPerTokenOf(depth, means.vocab_size);
  const double speed = means.speeds.empty() ? 0 : SpeedOf(means.speeds, flops) / flops;
  double tokens = budget.amount;
  if (budget.unit == Budget::Unit::kFlops) tokens /= flops;
  if (budget.unit == Budget::Unit::kSeconds) tokens *= speed;
  tokens = std::min(tokens, kMostPasses * means.tokens);
  Choice choice{.depth = depth};
  choice.batch = std::max(BatchOfTokens(tokens), ContextOfDepth(depth));
  choice.steps = static_cast<int64_t>(tokens / static_cast<double>(choice.batch));
  tokens = static_cast<double>(choice.steps * choice.batch);
  choice.tokens_per_parameter = tokens / parameters;
  choice.epochs = tokens / means.tokens;
  choice.seconds = speed > 0 ? tokens / speed : 0;
  choice.expected_loss =
      means.bytes_per_token * ExpectedLossPerByte(parameters, tokens, means.tokens);
  return choice;
}

}  // namespace

Budget ParseBudget(const std::string& text) {
  char* unit = nullptr;
  const double amount = std::strtod(text.c_str(), &unit);
  while (*unit == ' ') ++unit;
  using enum Budget::Unit;
  const std::pair<const char*, Budget> units[] = {
      {"s", {kSeconds, 1}},     {"m", {kSeconds, 60}},  {"h", {kSeconds, 3600}},
      {"d", {kSeconds, 86400}}, {"flops", {kFlops, 1}}, {"tokens", {kTokens, 1}}};
  for (const auto& [name, one] : units) {
    if (std::string_view(unit) == name && std::isfinite(amount) && amount > 0)
      return {one.unit, amount * one.amount};
  }
  throw InputError(StrCat("--budget=", text,
                          ": must be a time, such as 90s, 10m, 2h or 1d, or 1e18flops, or "
                          "3e9tokens"));
}

double ParametersOf(int64_t depth, int64_t vocab_size) {
  const int64_t width = WidthOfDepth(depth);
  return BlockParameters(depth, width) + static_cast<double>(vocab_size * width);
}

double FlopsPerTokenOf(int64_t depth, int64_t vocab_size) {
  const auto attended = static_cast<double>(depth * WidthOfDepth(depth) * ContextOfDepth(depth));
  return 6 * (ParametersOf(depth, vocab_size) + attended);
}

double ExpectedLossPerByte(double parameters, double tokens, double distinct_tokens) {
  constexpr double kLeast = 0.33, kFactor = 4.8, kExponent = 0.165;
  const double fills = distinct_tokens / kTokensPerParameter;
  const double n = Worth(parameters, fills, kWorthOfParameters);
  const double d = Worth(tokens, distinct_tokens, kWorthOfTokens) / kTokensPerParameter;
  return kLeast + kFactor * (std::pow(n, -kExponent) + std::pow(d, -kExponent));
}

std::vector<Choice> ChooseFor(const Budget& budget, const Means& means) {
  std::vector<Choice> all;
  for (int64_t depth = 2; depth <= kMaxDepth; ++depth) {
    Choice choice = ChoiceOf(budget, means, depth);
    if (choice.steps >= 1) all.push_back(choice);
  }
  if (all.empty()) {
    throw InputError(
        "--budget is too small for a single step of the smallest model: use a larger "
        "one");
  }
  const auto badness = [&](const Choice& c) {
    return budget.unit == Budget::Unit::kTokens
               ? std::abs(std::log(c.tokens_per_parameter / kTokensPerParameter))
               : c.expected_loss;
  };
  // Of those that are as good, the smallest.
  const double least = badness(*std::ranges::min_element(all, {}, badness));
  const auto best =
      std::ranges::find_if(all, [&](const Choice& c) { return badness(c) <= 1.001 * least; });
  std::vector<Choice> choices = {*best};
  if (best != all.begin()) choices.push_back(*std::prev(best));
  if (std::next(best) != all.end()) choices.push_back(*std::next(best));
  return choices;
}

}  // namespace lockstep::models
