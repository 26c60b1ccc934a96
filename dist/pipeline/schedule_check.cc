#include "dist/pipeline/schedule_check.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "dist/pipeline/schedule_walk.h"

namespace lockstep::dist {
namespace {

using enum PipelineOp;

struct Counts {
  int forward = 0, backward = 0, input_grad = 0, weight_grad = 0;
};

void CheckComplete(const PipelineSchedule& schedule) {
  LS_CHECK(schedule.stages() > 0 && schedule.micro_batches > 0,
           "a pipeline schedule needs a stage and a micro-batch");
  std::vector<Counts> counts(schedule.cells());
  for (const auto& actions : schedule.actions) {
    for (const PipelineAction& a : actions) {
      Counts& c = counts[schedule.CellOf(a.stage, a.micro)];
      if (a.op == kForward) ++c.forward;
      if (a.op == kBackward) ++c.backward;
      if (a.op == kInputGrad) ++c.input_grad;
      if (a.op == kWeightGrad) ++c.weight_grad;
    }
  }
  for (int s = 0; s < schedule.stages(); ++s) {
    for (int m = 0; m < schedule.micro_batches; ++m) {
      const Counts& c = counts[schedule.CellOf(s, m)];
      LS_CHECK(c.forward == 1, "rank ", schedule.rank_of[s], " makes ", s, "F", m, " ", c.forward,
               " times: a schedule has one forward of each stage and micro-batch");
      LS_CHECK((c.backward == 1 && c.input_grad + c.weight_grad == 0) ||
                   (c.backward == 0 && c.input_grad == 1 && c.weight_grad == 1),
               "rank ", schedule.rank_of[s], " makes ", s, "B", m, " ", c.backward, " times, ", s,
               "I", m, " ", c.input_grad, " times and ", s, "W", m, " ", c.weight_grad,
               " times: a schedule has one B, or one I and one W, of each stage and micro-batch");
    }
  }
}

void CheckWeightOrder(const PipelineSchedule& schedule) {
  std::vector<int> last(schedule.rank_of.size(), -1);
  for (int r = 0; r < schedule.ranks(); ++r) {
    for (const PipelineAction& a : schedule.actions[r]) {
      if (a.op != kBackward && a.op != kWeightGrad) continue;
      LS_CHECK(a.micro > last[a.stage], "rank ", r, " makes ", ToString(a),
               " after that of micro-batch ", last[a.stage],
               ": weight gradients must be made in the order of the micro-batches");
      last[a.stage] = a.micro;
    }
  }
}

// Between two ranks, transfers in one direction are matched by their order.
void CheckTransferOrder(const PipelineSchedule& schedule) {
  std::map<std::pair<int, int>, std::pair<std::vector<PipelineAction>, std::vector<PipelineAction>>>
      edges;
  for (int r = 0; r < schedule.ranks(); ++r) {
    for (const PipelineAction& a : schedule.actions[r]) {
      if (!a.is_transfer()) continue;
      const int other = OtherEnd(a).stage;
      LS_CHECK(other >= 0 && other < schedule.stages() && schedule.crosses(a.stage, other), "rank ",
               r, ": ", ToString(a), " is a transfer to or from a stage that is on no other rank");
      const int peer = schedule.rank_of[other];
      auto& [sent, taken] = edges[a.is_send() ? std::pair(r, peer) : std::pair(peer, r)];
      // As the receiver writes it.
      (a.is_send() ? sent : taken).push_back(a.is_send() ? OtherEnd(a) : a);
    }
  }
  for (const auto& [edge, lists] : edges) {
    const auto& [sent, taken] = lists;
    for (size_t i = 0; i < std::max(sent.size(), taken.size()); ++i) {
      if (i < sent.size() && i < taken.size() && sent[i] == taken[i]) continue;
      const auto name = [&](const auto& list) {
        return i < list.size() ? ToString(list[i]) : std::string("nothing more");
      };
      throw ArgumentError(StrCat("transfer ", i + 1, " from rank ", edge.first, " to rank ",
                                 edge.second, ": rank ", edge.second, " expects ", name(taken),
                                 ", but rank ", edge.first, " sends what is ", name(sent),
                                 ": both must have the same order"));
    }
  }
}

void CheckInFlight(const PipelineSchedule& schedule) {
  if (schedule.in_flight.empty()) return;
  const std::vector<int> peak = PeakInFlight(schedule);
  for (int r = 0; r < schedule.ranks(); ++r) {
    LS_CHECK(peak[r] <= schedule.in_flight[r], "rank ", r, " keeps the inputs of ", peak[r],
             " forwards at the same time, and the schedule's limit is ", schedule.in_flight[r]);
  }
}

}  // namespace

void Check(const PipelineSchedule& schedule) {
  ScheduleWalk walk(schedule);  // refuses foreign stages first
  CheckComplete(schedule);
  CheckWeightOrder(schedule);
  CheckTransferOrder(schedule);
  walk.Run([](int, const PipelineAction&) {});
  CheckInFlight(schedule);
}

std::vector<int> PeakInFlight(const PipelineSchedule& schedule) {
  std::vector<int> peaks;
  for (const auto& actions : schedule.actions) {
    int now = 0, peak = 0;
    for (const PipelineAction& a : actions) {
      if (a.op == kForward) peak = std::max(peak, ++now);
      if (a.op == kBackward || a.op == kWeightGrad) --now;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

double SimulatedPipeline::IdleShare() const {
  double sum = 0;
  for (size_t r = 0; r < busy.size(); ++r) sum += IdleShare(static_cast<int>(r));
  return sum / static_cast<double>(busy.size());
}

SimulatedPipeline Simulate(const PipelineSchedule& schedule, const PipelineTimes& times) {
  SimulatedPipeline out;
  out.busy.resize(schedule.actions.size());
  out.actions.resize(schedule.actions.size());
  std::vector<double> clock(schedule.actions.size(), 0);
  // When they are there.
  std::vector<double> output(schedule.cells()), gradient(schedule.cells());
  ScheduleWalk(schedule).Run([&](int rank, const PipelineAction& a) {
    if (a.is_transfer()) return;
    const auto from = [&](const std::vector<double>& made, int stage) {
      if (stage < 0 || stage >= schedule.stages()) return 0.0;
      return made[schedule.CellOf(stage, a.micro)] +
             (schedule.crosses(a.stage, stage) ? times.transfer : 0.0);
    };
    double begin = clock[rank], takes = times.weight_grad;
    if (a.op == kForward) {
      begin = std::max(begin, from(output, a.stage - 1));
      takes = times.forward;
    } else if (a.op != kWeightGrad) {
      begin = std::max(begin, from(gradient, a.stage + 1));
      takes = times.input_grad + (a.op == kBackward ? times.weight_grad : 0.0);
    }
    const double end = begin + takes;
    const size_t cell = schedule.CellOf(a.stage, a.micro);
    if (a.op == kForward) output[cell] = end;
    if (a.op == kBackward || a.op == kInputGrad) gradient[cell] = end;
    clock[rank] = end;
    out.busy[rank] += takes;
    out.makespan = std::max(out.makespan, end);
    out.actions[rank].push_back({a, begin, end});
  });
  return out;
}

}  // namespace lockstep::dist
