#include "dist/pipeline/schedule_walk.h"

#include "core/error.h"

namespace lockstep::dist {

using enum PipelineOp;

ScheduleWalk::ScheduleWalk(const PipelineSchedule& schedule)
    : schedule_(schedule), done_(schedule.cells()), next_(schedule.actions.size(), 0) {
  for (int r = 0; r < schedule.ranks(); ++r) {
    ready_.push_back(r);
    for (const PipelineAction& a : schedule.actions[r]) {
      transfers_ = transfers_ || a.is_transfer();
      LS_CHECK(a.stage >= 0 && a.stage < schedule.stages() && schedule.rank_of[a.stage] == r &&
                   a.micro >= 0 && a.micro < schedule.micro_batches,
               "rank ", r, ": ", ToString(a),
               " is of a stage or micro-batch that it does not have");
    }
  }
}

bool ScheduleWalk::Done(int stage, PipelineOp op, int micro) const {
  return (done_[schedule_.CellOf(stage, micro)] >> static_cast<int>(op) & 1) != 0;
}

void ScheduleWalk::SetDone(const PipelineAction& a) {
  uint8_t& done = done_[schedule_.CellOf(a.stage, a.micro)];
  done = static_cast<uint8_t>(done | 1u << static_cast<int>(a.op));
}

// Where the schedule has transfers, a neighbour's result counts once it has been received.
ScheduleWalk::Need ScheduleWalk::NeedOf(const PipelineAction& a) const {
  const int s = a.stage, m = a.micro, last = schedule_.stages() - 1;
  const auto need = [&](int stage, PipelineOp op, bool met) {
    return Need{{stage, op, m}, met || Done(stage, op, m)};
  };
  const bool gradient_made =
      a.op == kSendBackward ? Done(s, kBackward, m) || Done(s, kInputGrad, m) : false;
  switch (a.op) {
    case kForward:
      if (s == 0) return {};
      if (transfers_ && schedule_.crosses(s - 1, s)) return need(s, kReceiveForward, false);
      return need(s - 1, kForward, false);
    case kBackward:
    case kInputGrad:
      if (!Done(s, kForward, m)) return need(s, kForward, false);
      if (s == last) return {};
      if (transfers_ && schedule_.crosses(s, s + 1)) return need(s, kReceiveBackward, false);
      return need(s + 1, kBackward, Done(s + 1, kInputGrad, m));
    case kWeightGrad:
      return need(s, kInputGrad, false);
    case kSendForward:
      return need(s, kForward, false);
    case kSendBackward:
      return need(s, kBackward, gradient_made);
    case kReceiveForward:
    case kReceiveBackward:
      return {};
  }
  return {};
}

bool ScheduleWalk::Advance(int rank, const std::function<void(int, const PipelineAction&)>& visit) {
  const auto& actions = schedule_.actions[rank];
  if (next_[rank] == actions.size()) return false;
  const PipelineAction& a = actions[next_[rank]];
  if (!NeedOf(a).met) return false;
  if (a.is_transfer()) {
    const PipelineAction other = OtherEnd(a);
    LS_CHECK(other.stage >= 0 && other.stage < schedule_.stages() &&
                 schedule_.crosses(a.stage, other.stage),
             "rank ", rank, ": ", ToString(a),
             " is a transfer between stages that are not on two ranks");
    const int peer = schedule_.rank_of[other.stage];
    const auto& of_peer = schedule_.actions[peer];
    if (next_[peer] == of_peer.size() || of_peer[next_[peer]] != other) return false;
    // Only the send is looked at for what it needs, whichever of the two ranks came last.
    if (!NeedOf(other).met) return false;
    visit(a.is_send() ? rank : peer, a.is_send() ? a : other);
    visit(a.is_send() ? peer : rank, a.is_send() ? other : a);
    SetDone(other);
    ++next_[peer];
    ready_.push_back(peer);
  } else {
    visit(rank, a);
  }
  SetDone(a);
  ++next_[rank];
  for (const int s : {a.stage - 1, a.stage + 1}) {
    if (s >= 0 && s < schedule_.stages() && schedule_.crosses(a.stage, s)) {
      ready_.push_back(schedule_.rank_of[s]);
    }
  }
  return true;
}

void ScheduleWalk::Run(const std::function<void(int rank, const PipelineAction& action)>& visit) {
  while (!ready_.empty()) {
    const int rank = ready_.front();
    ready_.pop_front();
    // One action, then the other ranks' turn, so that transfers are listed about when they happen.
    if (Advance(rank, visit)) ready_.push_back(rank);
  }
  for (int r = 0; r < schedule_.ranks(); ++r) {
    if (next_[r] < schedule_.actions[r].size()) ThrowStuck();
  }
}

void ScheduleWalk::ThrowStuck() const {
  std::string text;
  int stuck = 0;
  for (int r = 0; r < schedule_.ranks(); ++r) {
    if (next_[r] == schedule_.actions[r].size()) continue;
    if (++stuck > 4) continue;
    const PipelineAction& a = schedule_.actions[r][next_[r]];
    const Need need = NeedOf(a);
    const PipelineAction missing = need.met ? OtherEnd(a) : need.action;
    const int of = schedule_.rank_of[missing.stage];
    const bool ended = next_[of] == schedule_.actions[of].size();
    text += StrCat(stuck > 1 ? "; " : "", "rank ", r, ", at ", ToString(a), " (its action ",
                   next_[r] + 1, "), waits for ", ToString(missing), " of rank ", of,
                   of == r ? ""
                   : ended ? ", which has ended"
                           : StrCat(", which is at ", ToString(schedule_.actions[of][next_[of]])));
  }
  throw ArgumentError(StrCat("the pipeline schedule cannot be carried out: ", text,
                             stuck > 4 ? StrCat("; and ", stuck - 4, " more ranks wait") : ""));
}

}  // namespace lockstep::dist
