#include "models/plan/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/thread_pool.h"
#include "dist/launch/rank_device.h"
#include "dist/preflight/judgement.h"
#include "dist/preflight/measure.h"
#include "models/options/depth_laws.h"
#include "models/plan/block_time.h"
#include "models/report/run_progress.h"
#include "models/train/budget/measured_steps.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {
namespace {

// Seconds of a step, by what a cluster says of its device.
struct FittedTimes {
  double products = 0, attention = 0, attention_backward = 0, other = 0, update = 0, host = 0;
};

FittedTimes PlannedTimes(const MeasuredPlan& step, const Cluster& cluster) {
  const BlockTime block = BlockTimeOf(step.model, step.layout, cluster);
  const BlockTime head = HeadTimeOf(step.model, step.layout, cluster);
  const auto micro = static_cast<double>(step.layout.grad_accum);
  const auto all = [&](PassTimes BlockTime::*part, double PassTimes::*pass) {
    return micro * (step.model.layers * (block.*part).*pass + (head.*part).*pass);
  };
  const auto both = [&](PassTimes BlockTime::*part) {
    return all(part, &PassTimes::forward) + all(part, &PassTimes::input_grad) +
           all(part, &PassTimes::weight_grad);
  };
  return {.products = both(&BlockTime::products),
          .attention = all(&BlockTime::attention, &PassTimes::forward),
          .attention_backward = all(&BlockTime::attention, &PassTimes::input_grad),
          .other = both(&BlockTime::other),
          .update = TimeOf(step.model, step.layout, cluster).update,
          .host = both(&BlockTime::host)};
}

FittedTimes MeasuredTimes(const MeasuredPlan& step) {
  FittedTimes t;
  for (const auto& [name, ms] : step.kernel_ms) {
    const std::string owner = OwnerOf(name);
    double& seconds = name == "attention_backward" ? t.attention_backward
                      : owner == kAttention        ? t.attention
                      : owner == kProducts         ? t.products
                      : owner == kUpdate           ? t.update
                      : owner == kHost             ? t.host
                                                   : t.other;
    seconds += 1e-3 * ms;
  }
  return t;
}

// So that heads take a part of the step, as in a small model of text.
constexpr int64_t kVocabulary = 2048;

std::vector<MeasuredPlan> MeasurePlans(const RunConfig& config, Device device) {
  std::vector<MeasuredPlan> plans;
  for (const int64_t depth : MeasuredDepths(device)) {
    const int64_t width = WidthOfDepth(depth);
    const MeasuredSteps steps =
        MeasureSteps({StrCat("--model.n_layer=", depth), StrCat("--model.n_embd=", width),
                      StrCat("--model.n_head=", width / HeadWidthOfDepth(depth)),
                      StrCat("--model.block_size=", ContextOfDepth(depth)),
                      StrCat("--model.vocab_size=", kVocabulary),
                      StrCat("--train.precision=", config.train.precision)},
                     device, /*watches=*/true);
    Print(fmt::format("  depth {}: {:.1f} ms a step", depth, 1e3 * steps.seconds));
    plans.push_back({PlannedModel::Of(steps.setup), LayoutOf(steps.setup), steps.kernel_ms});
  }
  return plans;
}

// Collective. Of the pairs in a machine, and between machines; a link without any stays.
void MeasureLinks(const RunRanks& ranks, int64_t per_node, Cluster* cluster) {
  std::vector<std::vector<int>> machines;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank % per_node == 0) machines.emplace_back();
    machines.back().push_back(rank);
  }
  const auto pairs =
      dist::MeasurePairs(*ranks.control(), ranks.groups().data, machines, std::chrono::seconds(10));
  std::vector<double> seconds[2], rates[2];
  for (const dist::PairFacts& pair : pairs) {
    if (!pair.answered) throw Error("ranks do not reach each other: launch --check says more");
    const bool between = pair.a / per_node != pair.b / per_node;
    seconds[between].push_back(pair.latency);
    rates[between].push_back(pair.bandwidth);
  }
  for (const auto& [link, between] : {std::pair(&cluster->node, 0), {&cluster->network, 1}}) {
    if (!rates[between].empty()) {
      *link = {dist::Median(seconds[between]), dist::Median(rates[between])};
    }
  }
  // A CPU's messages take the cores that compute, those of a slow link for a part of the time.
  constexpr double kCopiedPerSecond = 1e9;
  const Link& slowest = rates[1].empty() ? cluster->node : cluster->network;
  if (cluster->is_cpu) {
    cluster->disturbs = std::min(1.0, slowest.bytes_per_second / kCopiedPerSecond);
  }
}

}  // namespace

void Fit(const std::vector<MeasuredPlan>& measured, Cluster* cluster) {
  constexpr int kRounds = 20;  // what a constant limits may change with it
  Cluster& c = *cluster;
  FittedTimes is;
  const auto add = [](FittedTimes* sum, const FittedTimes& more) {
    for (const auto part :
         {&FittedTimes::products, &FittedTimes::attention, &FittedTimes::attention_backward,
          &FittedTimes::other, &FittedTimes::update, &FittedTimes::host}) {
      sum->*part += more.*part;
    }
  };
  for (const MeasuredPlan& step : measured) add(&is, MeasuredTimes(step));
  for (int round = 0; round < kRounds; ++round) {
    FittedTimes planned;
    for (const MeasuredPlan& step : measured) add(&planned, PlannedTimes(step, c));
    const auto slower = [](double plan, double measured) {
      return plan > 0 && measured > 0 ? measured / plan : 1;
    };
    c.memory_per_second /= slower(planned.update, is.update);
    c.elementwise_per_second /= slower(planned.other, is.other);
    c.product_share /= slower(planned.products, is.products);
    c.attention_share /= slower(planned.attention, is.attention);
    c.attention_backward_share /= slower(planned.attention_backward, is.attention_backward);
    c.host_seconds *= slower(planned.host, is.host);
  }
}

Cluster Calibrate(const RunConfig& config) {
  const dist::Rendezvous place = dist::ReadRendezvous();
  const Device device = dist::DeviceOfRank(config.device, place);
  SetNumThreads(ThreadsOf(config, place));
  RunConfig plain;  // on data ranks only
  plain.dist.timeout = config.dist.timeout;
  plain.dist.heartbeat = config.dist.heartbeat;
  const RunRanks ranks(plain, place, device, /*recorder=*/nullptr);
  Cluster cluster;
  ranks.OnEveryRank([&] {
    if (!ranks.is_main()) return "";
    cluster = ClusterOfRanks(place, device, config.train.precision);
    Print("measuring this machine for some seconds");
    Fit(MeasurePlans(config, device), &cluster);
    return "";
  });
  if (ranks.size() > 1) MeasureLinks(ranks, place.local_world_size, &cluster);
  return cluster;
}

}  // namespace lockstep::models
