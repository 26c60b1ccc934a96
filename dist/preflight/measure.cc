#include "dist/preflight/measure.h"

#include <algorithm>
#include <future>
#include <limits>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "core/stream.h"
#include "dist/groups/agreement.h"
#include "dist/preflight/judgement.h"
#include "dist/preflight/pair_schedule.h"

namespace lockstep::dist {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr int kSmallSwaps = 20, kLargeSwaps = 4, kSums = 4;  // that are timed
// The first swap of a run is not timed; two runs find out how large the large ones are.
static_assert(kSmallSwaps + 1 + 2 + 2 + kLargeSwaps + 1 == PairFacts::kSwaps);
constexpr int64_t kSmallBytes = 8;
// A transfer is as large as lasts for this long, within these limits in bytes.
constexpr double kTransferTime = 0.005;
constexpr int64_t kLeastBytes = 256 << 10, kMostBytes = 32 << 20;

int64_t BytesFor(double bandwidth) {
  const double bytes = bandwidth * kTransferTime;
  return static_cast<int64_t>(
      std::clamp(bytes, static_cast<double>(kLeastBytes), static_cast<double>(kMostBytes)));
}

// The times of calls that were made one after the other, but for the first one, which waits for
// ranks that come later; none if they do not end before `deadline`. Adds to `ended` those that do.
std::vector<double> TimesOf(const std::vector<WorkPtr>& works, Work::Clock::time_point deadline,
                            int* ended) {
  for (const WorkPtr& work : works) {
    while (!work->Done()) {
      if (Work::Clock::now() > deadline) return {};
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    work->Synchronize();  // throws what went wrong
    ++*ended;
  }
  std::vector<double> times;
  for (size_t i = 1; i < works.size(); ++i) {
    const auto span = works[i]->span();
    LS_INVARIANT(span, "a call that has ended");
    // A GPU's clock may find nothing between two events.
    times.push_back(std::max(1e-9, Seconds(span->end - span->begin).count()));
  }
  return times;
}

// f(deadline), on a thread of its own; nullopt if that does not return soon after the deadline,
// since a library may not even come back from a call. The thread is left behind then: f must own
// what it uses.
template <class F>
auto InTime(Device device, Milliseconds patience, F f)
    -> std::optional<std::invoke_result_t<F, Work::Clock::time_point>> {
  using Result = std::invoke_result_t<F, Work::Clock::time_point>;
  constexpr auto kGrace = std::chrono::seconds(1);
  const auto deadline = Work::Clock::now() + patience;
  std::packaged_task<Result()> task([f = std::move(f), deadline, stream = CurrentStream(device)] {
    const StreamGuard guard(stream);
    return f(deadline);
  });
  std::future<Result> result = task.get_future();
  std::thread thread(std::move(task));
  if (result.wait_until(deadline + kGrace) != std::future_status::ready) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return result.get();
}

class PairMeter {
 public:
  PairMeter(ProcessGroup& data, int peer, Work::Clock::time_point deadline)
      : data_(data), peer_(peer), deadline_(deadline), facts_(Unanswered(data, peer)) {}

  PairFacts Measure() {
    const auto small = Swap(Bytes(kSmallBytes), Bytes(kSmallBytes * (kSmallSwaps + 1)));
    if (small.empty()) return facts_;
    const auto bytes = AgreeOnBytes();
    if (!bytes) return facts_;
    const Tensor theirs = Bytes(*bytes * (kLargeSwaps + 1));
    const auto large = Swap(Bytes(*bytes), theirs);
    if (large.empty()) return facts_;
    const auto arrived = theirs.ToVector<uint8_t>();
    facts_.answered = true;
    facts_.right = std::ranges::all_of(arrived, [&](uint8_t x) { return x == MarkOf(peer_); });
    facts_.latency = Median(small);
    // What the link can carry: other work of the machines holds up one swap or another.
    facts_.bandwidth = static_cast<double>(*bytes) / *std::ranges::min_element(large);
    return facts_;
  }

  static PairFacts Unanswered(const ProcessGroup& data, int peer) {
    return {std::min(data.rank(), peer), std::max(data.rank(), peer)};
  }

 private:
  static constexpr int kMarks = 251;
  static uint8_t MarkOf(int rank) { return static_cast<uint8_t>(rank % kMarks); }

  // Marked as this rank's.
  Tensor Bytes(int64_t bytes) const {
    return Tensor::Full({bytes}, MarkOf(data_.rank()), DType::kU8, data_.device());
  }

  // The peer's data arrive in `theirs`, one after the other until it is full.
  std::vector<double> Swap(const Tensor& mine, const Tensor& theirs) {
    const std::string purpose = StrCat("the preflight of ranks ", std::min(data_.rank(), peer_),
                                       " and ", std::max(data_.rank(), peer_));
    std::vector<WorkPtr> works;
    const int64_t n = mine.numel();
    for (int64_t at = 0; at < theirs.numel(); at += n) {
      const Tensor part = theirs.Slice(0, at, at + n);
      works.push_back(data_.Exchange(
          {{Transfer::Direction::kSend, mine, peer_}, {Transfer::Direction::kReceive, part, peer_}},
          purpose));
    }
    return TimesOf(works, deadline_, &facts_.swaps);
  }

  // Both ranks must choose alike: the less of what each finds.
  std::optional<int64_t> AgreeOnBytes() {
    const auto time = Swap(Bytes(kLeastBytes), Bytes(2 * kLeastBytes));
    if (time.empty()) return std::nullopt;
    const int64_t mine[] = {BytesFor(static_cast<double>(kLeastBytes) / time.front())};
    const Tensor theirs = Tensor::Zeros({2}, DType::kI64, data_.device());
    if (Swap(Tensor::FromSpan<int64_t>(mine, {1}, data_.device()), theirs).empty()) {
      return std::nullopt;
    }
    return std::min(mine[0], theirs.ToVector<int64_t>().front());
  }

  ProcessGroup& data_;
  const int peer_;
  const Work::Clock::time_point deadline_;
  PairFacts facts_;
};

// Whether it is so on all ranks. A barrier, too.
bool OnAll(ProcessGroup& control, bool here) {
  const int64_t mine[] = {here ? 1 : 0};
  const Tensor all = Tensor::FromSpan<int64_t>(mine, {1});
  control.AllReduce(all, ReduceOp::kMin)->Wait();
  return all.ToVector<int64_t>().front() == 1;
}

int64_t Now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

std::vector<PairFacts> MeasurePairs(ProcessGroup& control,
                                    const std::shared_ptr<ProcessGroup>& data,
                                    const std::vector<std::vector<int>>& machines,
                                    Milliseconds patience) {
  const PairSchedule schedule(machines);
  std::vector<PairFacts> mine;  // of each round
  for (int round = 0; round < schedule.rounds(); ++round) {
    const int peer = schedule.Peer(round, data->rank());
    const auto measure = [data, peer](Work::Clock::time_point deadline) {
      return PairMeter(*data, peer, deadline).Measure();
    };
    mine.push_back(peer < 0 ? PairFacts{}
                            : InTime(data->device(), patience, measure)
                                  .value_or(PairMeter::Unanswered(*data, peer)));
    if (!OnAll(control, peer < 0 || mine.back().answered)) break;
  }
  std::vector<double> values;
  for (const PairFacts& p : mine) {
    values.insert(values.end(), {p.answered ? 1. : 0., p.right ? 1. : 0., p.latency, p.bandwidth,
                                 static_cast<double>(p.swaps)});
  }
  if (values.empty()) return {};
  const auto all = GatherValues(control, std::span<const double>(values));
  std::vector<PairFacts> pairs;
  for (size_t round = 0; round < mine.size(); ++round) {
    for (int a = 0; a < data->size(); ++a) {
      const int b = schedule.Peer(static_cast<int>(round), a);
      if (b < a) continue;
      // What either finds wrong, and the slower of both.
      const auto of = [&](int rank) { return &all[static_cast<size_t>(rank)][5 * round]; };
      const double *x = of(a), *y = of(b);
      pairs.push_back({a, b, x[0] * y[0] != 0, x[1] * y[1] != 0, std::max(x[2], y[2]),
                       std::min(x[3], y[3]), static_cast<int>(std::min(x[4], y[4]))});
    }
  }
  std::ranges::sort(pairs, {}, [](const PairFacts& p) { return std::pair(p.a, p.b); });
  return pairs;
}

SumFacts MeasureSum(ProcessGroup& control, const std::shared_ptr<ProcessGroup>& data,
                    double bandwidth, Milliseconds patience) {
  const int64_t elements = BytesFor(bandwidth) / SizeOf(DType::kF32), n = data->size();
  SumFacts facts{.bytes = elements * SizeOf(DType::kF32)};
  // Sums of small whole numbers are exact in any order, and different at neighbouring positions.
  constexpr int64_t kPeriod = 97;
  std::vector<float> values(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>(i % kPeriod + data->rank());
  }
  const Tensor sums = Tensor::FromVector(values, {elements}, data->device());
  const auto add = [data, sums](Work::Clock::time_point deadline) {
    const Tensor zeros = Tensor::Zeros(sums.shape(), sums.dtype(), sums.device());
    std::vector<WorkPtr> works;
    for (int i = 0; i <= kSums; ++i) {
      works.push_back(
          data->AllReduce(i == 0 ? sums : zeros, ReduceOp::kSum, "the preflight's sum"));
    }
    int ended = 0;
    return TimesOf(works, deadline, &ended);
  };
  const auto times = InTime(data->device(), patience, add).value_or(std::vector<double>());
  facts.answered = OnAll(control, !times.empty());
  if (!facts.answered) return facts;
  values = sums.ToVector<float>();
  facts.right = true;
  for (int64_t i = 0; i < elements; ++i) {
    const auto expected = static_cast<float>(n * (i % kPeriod) + n * (n - 1) / 2);
    facts.right = facts.right && values[static_cast<size_t>(i)] == expected;
  }
  facts.right = OnAll(control, facts.right);
  const double mine[] = {Median(times)};
  for (const auto& row : GatherValues(control, std::span<const double>(mine))) {
    facts.seconds = std::max(facts.seconds, row[0]);
  }
  return facts;
}

std::vector<ClockFacts> MeasureClocks(ProcessGroup& control,
                                      const std::vector<std::vector<int>>& machines) {
  constexpr int kRoundTrips = 8;
  std::vector<ClockFacts> clocks;
  for (const auto& ranks : machines) {
    const int other = ranks.front();
    if (other == 0 || (control.rank() != 0 && control.rank() != other)) continue;
    ClockFacts best{other, 0, std::numeric_limits<double>::infinity()};
    for (int i = 0; i < kRoundTrips; ++i) {
      const Tensor time = Tensor::Zeros({1}, DType::kI64);
      if (control.rank() == other) {
        control.Receive(time, 0)->Wait();
        const int64_t now[] = {Now()};
        control.Send(Tensor::FromSpan<int64_t>(now, {1}), 0)->Wait();
        continue;
      }
      const int64_t begin = Now();
      control.Send(time, other)->Wait();
      control.Receive(time, other)->Wait();
      const auto trip = static_cast<double>(Now() - begin);
      const auto there = static_cast<double>(time.ToVector<int64_t>().front() - begin);
      const double error = trip / 2 * 1e-9;
      if (error < best.error) best = {other, (there - trip / 2) * 1e-9, error};
    }
    if (control.rank() == 0) clocks.push_back(best);
  }
  return clocks;
}

}  // namespace lockstep::dist
