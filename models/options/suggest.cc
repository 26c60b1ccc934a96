#include "models/options/suggest.h"

#include <algorithm>
#include <limits>

namespace lockstep::models {
namespace {

constexpr size_t kLongestKey = 64;  // a longer one is no typo, and distances take quadratic time
constexpr double kTooFar = std::numeric_limits<double>::infinity();

std::string_view LastPart(std::string_view key) { return key.substr(key.rfind('.') + 1); }

std::string_view Section(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

// The number of edits, or kTooFar if that many could turn almost any word into any other.
double TypoCost(std::string_view typed, std::string_view meant) {
  const auto distance = static_cast<double>(EditDistance(typed, meant));
  const double shorter = static_cast<double>(std::min(typed.size(), meant.size()));
  const double allowed = shorter <= 2 ? 0 : std::max(1.0, shorter / 3);
  if (distance <= allowed) return distance;
  // "optimizer.lr" for "optim.lr", "max_step" for "max_steps": one begins with the other.
  if (shorter >= 3 && (typed.starts_with(meant) || meant.starts_with(typed))) return 2;
  return kTooFar;
}

double Score(std::string_view typed, const Candidate& candidate) {
  double score = TypoCost(typed, candidate.key);
  const std::string_view section = Section(typed);
  // A wrong or missing section costs less than one wrong letter.
  double section_cost = 0.5;
  if (section == Section(candidate.key)) {
    section_cost = 0;
  } else if (!section.empty() && TypoCost(section, Section(candidate.key)) == kTooFar) {
    section_cost = 0.75;
  }
  const auto consider = [&](std::string_view name) {
    score = std::min(score, TypoCost(LastPart(typed), LastPart(name)) + section_cost);
  };
  consider(candidate.key);
  for (const std::string& alias : candidate.aliases) consider(alias);
  return score;
}

}  // namespace

int64_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<int64_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::vector<std::string> Nearest(std::string_view key, const std::vector<Candidate>& candidates) {
  std::vector<std::string> nearest;
  if (key.empty() || key.size() > kLongestKey) return nearest;
  double best = kTooFar;
  for (const Candidate& candidate : candidates) {
    const double score = Score(key, candidate);
    if (score == kTooFar || score > best) continue;
    if (score < best) nearest.clear();
    best = score;
    if (nearest.size() < 3) nearest.push_back(candidate.key);
  }
  return nearest;
}

}  // namespace lockstep::models
