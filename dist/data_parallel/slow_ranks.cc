#include "dist/data_parallel/slow_ranks.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lockstep::dist {

RankTimes& RankTimes::operator+=(const RankTimes& more) {
  arrival += more.arrival;
  data += more.data;
  checkpoint += more.checkpoint;
  receiving += more.receiving;
  return *this;
}

SlowRanks::SlowRanks(std::vector<int64_t> work) : ranks_(work.size()) {
  std::map<int64_t, std::vector<size_t>> alike;
  for (size_t r = 0; r < work.size(); ++r) alike[work[r]].push_back(r);
  for (auto& [number, ranks] : alike) alike_.push_back(std::move(ranks));
}

// By how much value(sums), in ms per step, is above the middle one of the other ranks that do the
// same work, or above the smaller of the two in the middle.
template <class F>
std::vector<double> SlowRanks::Excesses(const F& value) const {
  std::vector<double> values, excesses(ranks_.size());
  for (const State& r : ranks_) {
    values.push_back(1e-3 * static_cast<double>(value(r.sums)) / static_cast<double>(steps_));
  }
  for (const std::vector<size_t>& alike : alike_) {
    if (alike.size() < 2) continue;
    std::vector<double> sorted;
    for (const size_t r : alike) sorted.push_back(values[r]);
    std::ranges::sort(sorted);
    const size_t middle = (alike.size() - 2) / 2;
    for (const size_t r : alike) {
      const bool is_below = values[r] <= sorted[middle];
      excesses[r] = values[r] - sorted[is_below ? middle + 1 : middle];
    }
  }
  return excesses;
}

std::vector<LateRank> SlowRanks::Compare() const {
  const auto arrival = Excesses([](const RankTimes& t) { return t.arrival; });
  const auto data = Excesses([](const RankTimes& t) { return t.data; });
  const auto checkpoint = Excesses([](const RankTimes& t) { return t.checkpoint; });
  const auto computing =
      Excesses([](const RankTimes& t) { return t.arrival - t.data - t.checkpoint; });
  const auto receiving = Excesses([](const RankTimes& t) { return t.receiving; });
  std::vector<LateRank> late;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const double sending = -receiving[r];
    const double ms = arrival[r] + std::max(0.0, sending);
    const auto cause = std::max({std::pair(computing[r], "computing"),
                                 {data[r], "data"},
                                 {checkpoint[r], "checkpoint"},
                                 {sending, "sending"}},
                                [](const auto& a, const auto& b) { return a.first < b.first; });
    late.push_back({static_cast<int>(r), ms, ms * static_cast<double>(steps_) / ms_, cause.second});
  }
  return late;
}

std::optional<SlowRanks::Verdict> SlowRanks::Add(int64_t steps, double ms,
                                                 std::span<const RankTimes> times) {
  for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].sums += times[r];
  steps_ += steps;
  all_steps_ += steps;
  ms_ += ms;
  if (steps_ < kWindow || ms_ < kWindowMs) return {};
  const std::vector<LateRank> compared = Compare();
  Verdict verdict{.latest = *std::ranges::max_element(compared, {}, &LateRank::ms)};
  for (const LateRank& of_rank : compared) {
    State& r = ranks_[static_cast<size_t>(of_rank.rank)];
    const bool is_late = of_rank.share > kLate;
    r.late = is_late ? std::min(r.late + 1, 2) : 0;
    r.well = is_late ? 0 : std::min(r.well + 1, 2);
    if (r.late == 2) r.named = true;
    if (r.named && !r.told && all_steps_ >= r.quiet_until) {
      r.told = true;
      r.quiet_until = all_steps_ + kQuiet;
      verdict.begin.push_back(of_rank);
    }
    if (r.well == 2) {
      r.named = false;
      if (std::exchange(r.told, false)) verdict.end.push_back(of_rank.rank);
    }
    if (r.named) verdict.named.push_back(of_rank);
    r.sums = {};
  }
  steps_ = 0;
  ms_ = 0;
  return verdict;
}

}  // namespace lockstep::dist
