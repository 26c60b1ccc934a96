#include "dist/pipeline/schedule.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "dist/pipeline/schedule_walk.h"

namespace lockstep::dist {
namespace {

constexpr std::array<std::string_view, 4> kKindNames = {"1f1b", "interleaved", "zb_h1", "zbv"};
constexpr std::array<std::string_view, 8> kOpNames = {"F",      "B",      "I",      "W",
                                                      "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

using Actions = std::vector<PipelineAction>;

// The forwards and backwards of one rank, counted; an action beyond the last micro-batch is none.
class ActionList {
 public:
  ActionList(int micro_batches, Actions* to) : micro_batches_(micro_batches), to_(to) {}
  void Add(int stage, PipelineOp op, int micro) {
    if (micro < micro_batches_) to_->push_back({stage, op, micro});
  }

 private:
  int micro_batches_;
  Actions* to_;
};

Actions OneForwardOneBackward(int ranks, int rank, int micro_batches, bool split) {
  Actions out;
  ActionList list(micro_batches, &out);
  int next = std::min(micro_batches, ranks - rank), weights = 0;
  for (int f = 0; f < next; ++f) list.Add(rank, PipelineOp::kForward, f);
  for (int b = 0; b < micro_batches; ++b) {
    list.Add(rank, split ? PipelineOp::kInputGrad : PipelineOp::kBackward, b);
    // Where gradients are split, as many weight gradients wait as fill the bubble at the end.
    if (split && b + 1 - weights > rank) list.Add(rank, PipelineOp::kWeightGrad, weights++);
    list.Add(rank, PipelineOp::kForward, next++);
  }
  while (split && weights < micro_batches) list.Add(rank, PipelineOp::kWeightGrad, weights++);
  return out;
}

// Micro-batches go in rounds: a round's forwards through all stages of a rank, then the next's.
Actions Interleaved(int ranks, int rank, int micro_batches, int chunks, int warm_up) {
  const int per_round = micro_batches / std::max(1, micro_batches / ranks);
  const auto chunk_of = [&](int i) { return i / per_round % chunks; };
  const auto micro_of = [&](int i) { return i / (per_round * chunks) * per_round + i % per_round; };
  const int total = micro_batches * chunks;
  Actions out;
  const auto forward = [&](int i) {
    out.push_back({chunk_of(i) * ranks + rank, PipelineOp::kForward, micro_of(i)});
  };
  const auto backward = [&](int i) {
    out.push_back({(chunks - 1 - chunk_of(i)) * ranks + rank, PipelineOp::kBackward, micro_of(i)});
  };
  for (int i = 0; i < warm_up; ++i) forward(i);
  for (int i = warm_up; i < total; ++i) {
    forward(i);
    backward(i - warm_up);
  }
  for (int i = total - warm_up; i < total; ++i) backward(i);
  return out;
}

// Actions of one of the two stages of a rank: the next forward, input and weight gradient.
struct VStage {
  ActionList list;
  int stage;
  int f = 0, i = 0, w = 0;
  void F() { list.Add(stage, PipelineOp::kForward, f++); }
  void I() { list.Add(stage, PipelineOp::kInputGrad, i++); }
  void W() { list.Add(stage, PipelineOp::kWeightGrad, w++); }
};

Actions ZeroBubbleV(int ranks, int rank, int micro_batches) {
  // The pattern needs this many micro-batches; with fewer, those beyond are left out.
  const int planned = std::max(micro_batches, 2 * ranks - 1);
  Actions out;
  VStage first{ActionList(micro_batches, &out), rank};
  VStage second{ActionList(micro_batches, &out), 2 * ranks - 1 - rank};
  const auto all_of = [](VStage& s) {
    s.F();
    s.I();
    s.W();
  };
  for (int k = 0; k < 2 * (ranks - rank) - 1; ++k) first.F();
  for (int k = 0; k < rank; ++k) {
    second.F();
    first.F();
  }
  for (int k = 0; k < ranks - rank; ++k) all_of(second);
  while (second.f < first.f || first.f < planned) {
    if (first.f < planned) first.F();
    first.I();
    first.W();
    all_of(second);
  }
  for (int k = 0; k < rank; ++k) {
    first.I();
    second.I();
  }
  for (int k = 0; k < ranks - rank; ++k) {
    first.I();
    first.W();
  }
  while (second.w < second.i) second.W();
  while (first.w < first.i) first.W();
  return out;
}

int StageRank(PipelineKind kind, int ranks, int stage) {
  if (kind != PipelineKind::kZeroBubbleV) return stage % ranks;
  return stage < ranks ? stage : 2 * ranks - 1 - stage;
}

}  // namespace

PipelineKind ParsePipelineKind(std::string_view name) {
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (kKindNames[i] == name) return static_cast<PipelineKind>(i);
  }
  throw ArgumentError(
      StrCat("no pipeline schedule is named '", name, "': use 1f1b, interleaved, zb_h1 or zbv"));
}

std::string_view Name(PipelineKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

bool PipelineAction::is_send() const {
  return op == PipelineOp::kSendForward || op == PipelineOp::kSendBackward;
}

bool PipelineAction::is_receive() const {
  return op == PipelineOp::kReceiveForward || op == PipelineOp::kReceiveBackward;
}

std::string ToString(const PipelineAction& a) {
  return StrCat(a.stage, kOpNames[static_cast<size_t>(a.op)], a.micro);
}

PipelineAction OtherEnd(const PipelineAction& a) {
  switch (a.op) {
    case PipelineOp::kSendForward:
      return {a.stage + 1, PipelineOp::kReceiveForward, a.micro};
    case PipelineOp::kReceiveForward:
      return {a.stage - 1, PipelineOp::kSendForward, a.micro};
    case PipelineOp::kSendBackward:
      return {a.stage - 1, PipelineOp::kReceiveBackward, a.micro};
    default:
      return {a.stage + 1, PipelineOp::kSendBackward, a.micro};
  }
}

std::vector<int> PipelineSchedule::StagesOf(int rank) const {
  std::vector<int> out;
  for (int s = 0; s < stages(); ++s) {
    if (rank_of[s] == rank) out.push_back(s);
  }
  return out;
}

int ChunksOf(PipelineKind kind, int chunks) {
  if (kind == PipelineKind::kInterleaved) return chunks;
  return kind == PipelineKind::kZeroBubbleV ? 2 : 1;
}

PipelineSchedule MakeSchedule(PipelineKind kind, int ranks, int micro_batches, int chunks) {
  chunks = ChunksOf(kind, chunks);
  LS_CHECK(ranks >= 1 && micro_batches >= 1 && chunks >= 1, "a pipeline needs at least 1 rank, 1 ",
           "micro-batch and 1 stage per rank, got ", ranks, ", ", micro_batches, " and ", chunks);
  const int rounds = std::max(1, micro_batches / ranks);
  LS_CHECK(kind != PipelineKind::kInterleaved || micro_batches % rounds == 0,
           "an interleaved pipeline of ", ranks, " ranks goes through ", micro_batches,
           " micro-batches in ", rounds, " rounds, which do not divide them: use a multiple of ",
           ranks, " micro-batches");
  PipelineSchedule out{.micro_batches = micro_batches, .rank_of = {}, .actions = {}};
  for (int s = 0; s < ranks * chunks; ++s) out.rank_of.push_back(StageRank(kind, ranks, s));
  for (int r = 0; r < ranks; ++r) {
    const int warm_up = std::min((chunks - 1) * (micro_batches / rounds) + 2 * (ranks - 1 - r),
                                 micro_batches * chunks);
    switch (kind) {
      case PipelineKind::k1F1B:
        out.actions.push_back(OneForwardOneBackward(ranks, r, micro_batches, /*split=*/false));
        out.in_flight.push_back(std::min(micro_batches, ranks - r));
        break;
      case PipelineKind::kInterleaved:
        out.actions.push_back(Interleaved(ranks, r, micro_batches, chunks, warm_up));
        out.in_flight.push_back(std::min(micro_batches * chunks, warm_up + 1));
        break;
      case PipelineKind::kZeroBubbleH1:
        out.actions.push_back(OneForwardOneBackward(ranks, r, micro_batches, /*split=*/true));
        out.in_flight.push_back(std::min(micro_batches, ranks));
        break;
      case PipelineKind::kZeroBubbleV:
        out.actions.push_back(ZeroBubbleV(ranks, r, micro_batches));
        out.in_flight.push_back(std::min(2 * micro_batches, 2 * ranks));
        break;
    }
  }
  return out;
}

PipelineSchedule ForwardSchedule(const std::vector<int>& rank_of, int micro_batches) {
  LS_CHECK(!rank_of.empty() && micro_batches >= 1,
           "a forward needs a stage and a micro-batch, got ", rank_of.size(), " and ",
           micro_batches);
  PipelineSchedule out{.micro_batches = micro_batches, .rank_of = rank_of, .actions = {}};
  out.actions.resize(static_cast<size_t>(*std::max_element(rank_of.begin(), rank_of.end())) + 1);
  std::vector<int> done(rank_of.size(), 0);
  // In each round, every rank makes one forward of what was there when the round began.
  while (done.back() < micro_batches) {
    const std::vector<int> before = done;
    std::vector<bool> busy(out.actions.size(), false);
    for (int s = out.stages() - 1; s >= 0; --s) {
      const int there = s == 0 ? micro_batches : before[s - 1];
      if (busy[rank_of[s]] || done[s] == there) continue;
      busy[rank_of[s]] = true;
      out.actions[rank_of[s]].push_back({s, PipelineOp::kForward, done[s]++});
    }
  }
  return out;
}

PipelineSchedule AddTransfers(const PipelineSchedule& schedule) {
  PipelineSchedule out = schedule;
  for (Actions& actions : out.actions) actions.clear();
  // A transfer is appended to both lists at once, in the order in which results are made.
  const auto send = [&](const PipelineAction& sent) {
    const PipelineAction received = OtherEnd(sent);
    const int from = sent.stage, to = received.stage;
    if (to < 0 || to >= out.stages() || !out.crosses(from, to)) return;
    out.actions[out.rank_of[from]].push_back(sent);
    out.actions[out.rank_of[to]].push_back(received);
  };
  ScheduleWalk walk(schedule);
  walk.Run([&](int rank, const PipelineAction& a) {
    LS_CHECK(!a.is_transfer(), "rank ", rank, ": ", ToString(a),
             " is a transfer: AddTransfers takes a schedule that has none");
    out.actions[rank].push_back(a);
    if (a.op == PipelineOp::kForward) {
      send({a.stage, PipelineOp::kSendForward, a.micro});
    } else if (a.op != PipelineOp::kWeightGrad) {
      send({a.stage, PipelineOp::kSendBackward, a.micro});
    }
  });
  return out;
}

}  // namespace lockstep::dist
