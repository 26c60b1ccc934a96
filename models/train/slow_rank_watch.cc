#include "models/train/slow_rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "dist/blocked_time.h"
#include "dist/control/socket.h"
#include "dist/groups/agreement.h"
#include "models/report/run_progress.h"

namespace lockstep::models {
namespace {

int64_t Microseconds(double ms) { return std::llround(1e3 * ms); }

// What follows "rank 1 on node7 keeps the others waiting ...: ".
std::string Explain(const std::string& cause) {
  return cause == "data"         ? "its data come later than theirs"
         : cause == "checkpoint" ? "it takes longer for checkpoints than they do"
         : cause == "sending"    ? "what it sends takes longer to arrive than what they send"
                                 : "it computes more slowly than they do";
}

}  // namespace

SlowRankWatch::SlowRankWatch(const RunRanks& ranks, const dist::DataRanks& data) : ranks_(ranks) {
  if (!ranks.control()) return;
  // Ranks do the same work if their gradients are summed together, of equally many micro-batches.
  const dist::ProcessGroup* const group = ranks.groups().data.get();
  const int64_t mine[] = {group != nullptr ? group->members().front() : ranks.rank(),
                          std::ssize(data.micro_order())};
  std::vector<int64_t> work;
  for (const auto& of_rank : dist::GatherValues(*ranks.control(), mine)) {
    work.push_back(of_rank[0] << 32 | of_rank[1]);
  }
  hosts_ = dist::GatherTexts(*ranks.control(), dist::HostName(), /*limit=*/64);
  if (ranks.is_main()) slow_.emplace(std::move(work));
}

void SlowRankWatch::Add(const StepMetrics& m) {
  ++steps_;
  ms_ += m.ms;
  times_.arrival += Microseconds(m.arrival_ms);
  times_.data += Microseconds(m.times.data_ms);
  times_.receiving += Microseconds(m.receiving_ms);
}

int64_t SlowRankWatch::OwnTime() {
  const auto own = dist::Work::Clock::now().time_since_epoch() - dist::Blocked::Time();
  return std::chrono::duration_cast<std::chrono::microseconds>(own).count();
}

std::array<int64_t, SlowRankWatch::kValues> SlowRankWatch::Take() {
  const dist::RankTimes t = std::exchange(times_, {});
  return {t.arrival, t.data, t.checkpoint, t.receiving};
}

std::string SlowRankWatch::NameOf(int64_t rank) const {
  return StrCat("rank ", rank, " on ", hosts_[static_cast<size_t>(rank)]);
}

void SlowRankWatch::Judge(std::span<const std::vector<int64_t>> of_ranks) {
  if (!slow_) return;
  std::vector<dist::RankTimes> times;
  for (const auto& values : of_ranks) {
    const auto v = std::span(values).last<kValues>();
    times.push_back({.arrival = v[0], .data = v[1], .checkpoint = v[2], .receiving = v[3]});
  }
  auto verdict = slow_->Add(std::exchange(steps_, 0), std::exchange(ms_, 0), times);
  if (!verdict) return;
  if (!verdict->begin.empty() || !verdict->end.empty()) Tell(*verdict);
  verdict_ = std::move(verdict);
}

void SlowRankWatch::Tell(const dist::SlowRanks::Verdict& verdict) const {
  ranks_.OnMain("printing", [&] {
    for (const dist::LateRank& late : verdict.begin) {
      Warn(fmt::format("{} keeps the other ranks waiting, for {:.3g} ms ({:.0f}%) of each step: {}",
                       NameOf(late.rank), late.ms, 100 * late.share, Explain(late.cause)));
    }
    for (const int rank : verdict.end) {
      Warn(StrCat(NameOf(rank), " no longer keeps the other ranks waiting"));
    }
  });
}

void SlowRankWatch::Note(StepMetrics* m) {
  if (!verdict_) return;
  const dist::LateRank& latest = verdict_->latest;
  const bool is_named =
      std::ranges::any_of(verdict_->named, [&](const auto& r) { return r.rank == latest.rank; });
  m->late_rank = latest.rank;
  m->late_ms = latest.ms;
  if (is_named) m->late = StrCat(NameOf(latest.rank), " (", latest.cause, ")");
  verdict_.reset();
}

}  // namespace lockstep::models
