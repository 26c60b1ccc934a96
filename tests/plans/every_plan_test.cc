// Every plan, same bits: the physical plans of up to 8 ranks that there are for four small models,
// where any_plan_test draws some of more kinds. train_gpt refuses what it must, and nothing else;
// that is counted, with its reason.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <tuple>

#include "models/train/run_setup.h"
#include "tests/models/parsed_run.h"
#include "tests/plans/plan_run.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using Arguments = std::vector<std::string>;

// By hand, all of them; some minutes for each model and precision:
//   PLAN_EVERY=1 bazel-bin/tests/plans/every_plan_test
// Otherwise each 41st of them, which are of all kinds; what is refused, of all.
int Every() {
  const char* const text = std::getenv("PLAN_EVERY");
  if (text != nullptr) return std::max(1, std::atoi(text));
  return test::kSanitized ? 199 : 41;
}

struct Model {
  const char* name;
  Arguments arguments;
};
void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

constexpr int64_t kMicroBatches = 8, kMostRanks = 8;

// With as many layers as 8 stages need, and matrices of several chunks of the norm.
const Arguments kGpt2 = {"--model.vocab_size=32", "--model.block_size=16", "--model.n_layer=6",
                         "--model.n_head=4",      "--model.n_embd=96",     "--model.dropout=0.1",
                         "--optim.clip=0.05"};

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Arguments kLlama = kGpt2 + Arguments{"--model.norm=rms_norm", "--model.activation=swiglu",
                                           "--model.position=rope", "--model.bias=false",
                                           "--model.n_kv_head=4",   "--model.n_head=8",
                                           "--model.n_inner=192",   "--model.tie_embeddings=false"};

const Arguments kAdapters =
    kLlama + Arguments{"--lora.rank=4", "--lora.dropout=0.1", "--optim.clip=0.001"};

const Arguments kMixture =
    kLlama + Arguments{"--model.n_expert=8",        "--model.n_expert_used=2",
                       "--model.n_expert_inner=48", "--model.n_dense=1",
                       "--model.balance_loss=0.05", "--model.z_loss=0.01"};

// A physical plan as options of a run on this many ranks.
struct Physical {
  ParallelOptions options;
  int64_t dp = 1;

  int64_t ranks() const { return options.pp * dp * options.cp * options.tp; }
  Arguments arguments() const {
    const ParallelOptions& o = options;
    Arguments all = {StrCat("--parallel.pp=", o.pp), StrCat("--parallel.cp=", o.cp),
                     StrCat("--parallel.tp=", o.tp), StrCat("--parallel.ep=", o.ep),
                     StrCat("--parallel.shard=", o.shard)};
    if (o.pp > 1) all.push_back("--parallel.schedule=" + o.schedule);
    if (o.shard_ranks > 0) all.push_back(StrCat("--parallel.shard_ranks=", o.shard_ranks));
    if (!o.reshard_after_forward) all.push_back("--parallel.reshard_after_forward=false");
    return all;
  }
  Plan plan() const {
    const ParallelOptions& o = options;
    Plan plan{.copies = dp, .tp = o.tp, .cp = o.cp, .ep = o.ep, .data_parallel = true};
    if (o.pp > 1) plan.pp = o.pp, plan.schedule = dist::ParsePipelineKind(o.schedule);
    if (o.shard == "none") return plan;
    plan.data_parallel = false;
    plan.shards = o.shard_ranks > 0 ? o.shard_ranks : dp;
    plan.copies = dp / plan.shards;
    plan.options = o.shard == "full"        ? dist::Zero3()
                   : o.shard == "gradients" ? dist::Zero2()
                                            : dist::Zero1();
    if (!o.reshard_after_forward) plan.options.reshard = dist::Reshard::kAfterBackward;
    plan.options.sum = dist::GradientSum::kOrdered;
    return plan;
  }
};

// How data ranks shard what they train: not at all, or in groups of this many.
std::vector<Physical> WithShards(const Physical& one) {
  std::vector<Physical> all = {one};
  for (int64_t shards = 2; shards <= one.dp; ++shards) {
    if (one.dp % shards != 0) continue;
    for (const char* shard : {"optimizer", "gradients", "full", "full"}) {
      Physical p = one;
      // The second "full"; stages of pipelines keep their weights for a step anyway.
      if (all.back().options.shard == "full" && shard == std::string("full")) {
        if (one.options.pp > 1) continue;
        p.options.reshard_after_forward = false;
      }
      p.options.shard = shard;
      p.options.shard_ranks = shards < one.dp ? shards : 0;
      all.push_back(p);
    }
  }
  return all;
}

std::vector<Physical> AllPlans(bool mixture, int64_t most_tp, int64_t most_cp) {
  std::vector<Physical> all;
  for (const int64_t pp : {1, 2, 4, 8}) {
    for (int64_t tp = 1; tp <= most_tp; tp *= 2) {
      for (int64_t cp = 1; cp <= most_cp; cp *= 2) {
        for (int64_t dp = 1; pp * tp * cp * dp <= kMostRanks; ++dp) {
          for (const int64_t ep : {1, 2, 4, 8}) {
            if (ep > 1 && (!mixture || dp * cp % ep != 0)) continue;
            for (const char* schedule : {"1f1b", "interleaved", "zb_h1", "zbv"}) {
              if (pp == 1 && schedule != std::string("1f1b")) continue;
              Physical one{.dp = dp};
              one.options = {.tp = tp, .cp = cp, .pp = pp, .schedule = schedule, .ep = ep};
              for (const Physical& p : WithShards(one)) all.push_back(p);
            }
          }
        }
      }
    }
  }
  return all;
}

// Whether train_gpt must refuse the plan: for data ranks that need equally many of the 8
// micro-batches, more stages than the 6 layers, the embedding and the head, or experts on more
// ranks than have a copy of the model together. No other plan may be refused.
bool MustBeRefused(const Physical& p) {
  const ParallelOptions& o = p.options;
  const bool is_sharded = o.shard != "none";
  const int64_t of_experts = o.data_ranks_of_experts();
  const int64_t of_a_copy = o.shard_ranks > 0 ? o.shard_ranks : p.dp;
  const int64_t stages = o.schedule == "interleaved" || o.schedule == "zbv" ? 2 * o.pp : o.pp;
  return (kMicroBatches % p.dp != 0 && (is_sharded || o.pp > 1 || of_experts > 1)) || stages > 8 ||
         (is_sharded && of_a_copy % of_experts != 0);
}

RunSetup SetupOf(const Arguments& arguments, int64_t ranks) {
  const ParsedRun run(arguments);
  return PrepareShape(run.options, run.config, kCpu, ranks);
}

// Virtual sizes: of tp and of cp.
using Virtual = std::pair<int64_t, int64_t>;

class EveryPlan : public testing::TestWithParam<std::tuple<Model, const char*, Virtual>> {};

TEST_P(EveryPlan, HasTheBitsOfOneProcessOrIsRefused) {
  const auto& [model, precision, sizes] = GetParam();
  const Arguments of_task =
      model.arguments + Arguments{StrCat("--virtual.tp=", sizes.first),
                                  StrCat("--virtual.cp=", sizes.second),
                                  StrCat("--train.precision=", precision),
                                  "--train.batch_size=2",
                                  StrCat("--train.global_batch_size=", 2 * kMicroBatches),
                                  "--dist.reduction=ordered"};
  std::map<std::string, int> refused;
  const auto refusal = [&](const Physical& p) -> std::optional<RunSetup> {
    try {
      return SetupOf(of_task + p.arguments(), p.ranks());
    } catch (const InputError& e) {
      ++refused[e.what()];
      return {};
    }
  };
  const auto one = refusal({});
  ASSERT_TRUE(one) << refused.begin()->first;
  Task task{.model = one->model,
            .dtype = precision == std::string("bf16") ? DType::kBF16 : DType::kF32,
            .optim = one->config.optim,
            .micro_batches = kMicroBatches,
            .virtual_tp = sizes.first,
            .virtual_cp = sizes.second,
            .steps = 2};
  const Outcome alone = TrainBy(task, {.data_parallel = true}, task.steps);
  const auto plans = AllPlans(task.model.mixture.n_expert > 0, sizes.first, sizes.second);
  int same = 0, tried = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    const Plan plan = plans[i].plan();
    const bool is_refused = !refusal(plans[i]);
    EXPECT_EQ(is_refused, MustBeRefused(plans[i])) << plan << "; " << task;
    if (is_refused || i % static_cast<size_t>(Every()) != 0) continue;
    ++tried;
    try {
      const std::string difference = Difference(TrainBy(task, plan, task.steps), alone);
      EXPECT_EQ(difference, "") << plan << "; " << task;
      same += difference.empty() ? 1 : 0;
    } catch (const Error& e) {
      ADD_FAILURE() << e.what() << ": " << plan << "; " << task;
    }
  }
  EXPECT_GT(same, 0);
  std::printf("%d of %zu plans: %d have the bits of one process\n", tried, plans.size(), same);
  for (const auto& [reason, count] : refused) {
    std::printf("  %d refused: %s\n", count, reason.c_str());
  }
}

std::string NameOf(const testing::TestParamInfo<EveryPlan::ParamType>& test) {
  const auto& [model, precision, sizes] = test.param;
  return StrCat(model.name, "_", precision, "_virtual_tp_", sizes.first, "_cp_", sizes.second);
}

INSTANTIATE_TEST_SUITE_P(
    Dense, EveryPlan,
    testing::Combine(testing::Values(Model{"Gpt2", kGpt2}, Model{"Llama", kLlama}),
                     testing::Values("fp32", "bf16"), testing::Values(Virtual{4, 2})),
    NameOf);

INSTANTIATE_TEST_SUITE_P(Adapters, EveryPlan,
                         testing::Combine(testing::Values(Model{"Adapters", kAdapters}),
                                          testing::Values("bf16"), testing::Values(Virtual{4, 2})),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(Mixture, EveryPlan,
                         testing::Combine(testing::Values(Model{"Mixture", kMixture}),
                                          testing::Values("fp32", "bf16"),
                                          testing::Values(Virtual{4, 2})),
                         NameOf);

}  // namespace
}  // namespace lockstep::models
