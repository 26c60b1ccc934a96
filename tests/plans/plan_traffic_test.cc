// What the ranks of each parallel mode, and of compositions, send in a step: as many bytes as the
// mode's formula says (traffic_formula.h).
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/dist/in_process.h"
#include "tests/models/training.h"
#include "tests/plans/counting_group.h"
#include "tests/plans/plan_run.h"
#include "tests/plans/traffic_formula.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;

constexpr const char* kValues = "values";  // losses, norms: a few numbers each

// "tp[dp=1]" and "pp[dp=0].0_to_1" are of the axes tp and pp.
std::string AxisOf(const dist::Traffic::Key& key) {
  const auto& [group, purpose] = key;
  // "bucket 1 in Backward"; the name of the user's call alone where small values are meant.
  const std::string what = purpose.substr(0, purpose.find(" in "));
  static const std::set<std::string> values = {"",
                                               "Backward",
                                               "ClipGradNorm",
                                               "Sum",
                                               "Any",
                                               "Gather",
                                               "SumInPlace",
                                               "the sums of a gradient norm",
                                               "which parameters took part"};
  const bool is_value = group.starts_with("control") || values.contains(what);
  return is_value ? kValues : group.substr(0, group.find_first_of("[."));
}

// What each rank sends in the second step: in the first, ranks agree on the order of gradients.
std::vector<Bytes> Measure(const Task& task, const Plan& plan) {
  std::vector<Bytes> sent(static_cast<size_t>(plan.ranks()));
  dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& group) {
    const auto traffic = std::make_shared<dist::Traffic>();
    const auto all = dist::MakeCountingGroup({&group, [](auto*) {}}, traffic);
    PlanRun run(*all, task, plan);
    run.trainer().Step();
    traffic->Clear();
    run.trainer().Step();
    Bytes& mine = sent[static_cast<size_t>(group.rank())];
    for (const auto& [key, bytes] : traffic->bytes()) mine[AxisOf(key)] += bytes;
  });
  return sent;
}

// `padded`: buckets and units are rounded up, to a few percent at most.
void ExpectTraffic(const Task& task, Plan plan, double padded = 0) {
  plan.options.sum = dist::GradientSum::kOrdered;  // unless the task is fast
  std::vector<Bytes> sent = Measure(task, plan);
  const TrafficFormula formula(task, plan);
  Bytes total;
  for (const Bytes& of_rank : sent) {
    for (const auto& [axis, bytes] : of_rank) total[axis] += bytes;
  }
  const Bytes expected = formula.Total();
  for (const auto& [axis, bytes] : total) {
    if (axis == kValues) {
      EXPECT_LT(bytes, 8192 * plan.ranks()) << task << "; " << plan;
    } else {
      EXPECT_TRUE(expected.contains(axis) || bytes == 0) << axis << ": " << task << "; " << plan;
    }
  }
  for (const auto& [axis, bytes] : expected) {
    const bool is_padded = axis != "tp" && axis != "cp" && axis != "ep" && axis != "pp";
    const auto most = static_cast<double>(bytes) * (is_padded ? 1 + padded : 1);
    EXPECT_GE(total[axis], bytes) << axis << ": " << task << "; " << plan;
    EXPECT_LE(static_cast<double>(total[axis]), most) << axis << ": " << task << "; " << plan;
    for (int64_t r = 0; r < plan.ranks(); ++r) {
      const int64_t mine = sent[static_cast<size_t>(r)][axis];
      if (axis == "pp") {
        EXPECT_EQ(mine, formula.PipelineRank(r / (plan.ranks() / plan.pp))) << r << ": " << plan;
      } else if (plan.pp == 0) {  // otherwise it depends on the stage
        EXPECT_EQ(mine, total[axis] / plan.ranks()) << axis << ", rank " << r << ": " << plan;
      }
    }
  }
}

Task Gpt2(DType dtype) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = dtype, .micro_batches = 8};
  task.model.vocab_size = 32;
  task.model.n_head = 4;
  task.model.n_embd = 128;
  task.model.tie_embeddings = false;
  return task;
}

Task Llama(DType dtype) {
  Task task = LlamaLike(Gpt2(dtype));
  task.model.n_kv_head = 2;
  task.model.n_inner = 256;
  return task;
}

// Both sums of gradients.
void ExpectTrafficOfSums(Task task, const Plan& plan, double padded = 0) {
  for (const bool fast : {true, false}) {
    task.fast = fast;
    ExpectTraffic(task, plan, padded);
  }
}

TEST(PlanTraffic, DataParallel) {
  for (const int64_t ranks : {2, 4}) {
    ExpectTrafficOfSums(Gpt2(DType::kF32), {.copies = ranks, .data_parallel = true}, 0.01);
  }
  Task task = Gpt2(DType::kBF16);
  task.model.tie_embeddings = true;
  ExpectTrafficOfSums(task, {.copies = 2, .data_parallel = true}, 0.01);
}

// Of matrices that are large beside the chunks of the norm, at which units are cut. So is the head,
// which stays from its forward to its backward.
TEST(PlanTraffic, Sharded) {
  Task task = Gpt2(DType::kBF16);
  task.model.vocab_size = 2048;
  task.model.n_embd = 512;
  task.model.n_layer = 1;
  dist::ShardOptions kept = dist::Zero3();
  kept.reshard = dist::Reshard::kAfterBackward;
  for (const auto& options : {dist::Zero1(), dist::Zero2(), dist::Zero3(), kept}) {
    task.dtype = DType::kBF16;
    ExpectTrafficOfSums(task, {.shards = 2, .options = options}, 0.03);
    task.dtype = DType::kF32;
    ExpectTraffic(task, {.shards = 2, .copies = 2, .options = options}, 0.03);
  }
}

TEST(PlanTraffic, TensorParallel) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (Task task : {Gpt2(dtype), Llama(dtype)}) {
      task.virtual_tp = 4;  // which costs nothing on the way
      ExpectTrafficOfSums(task, {.tp = 2, .data_parallel = true});
    }
    Task task = Gpt2(dtype);
    task.virtual_tp = 4;
    ExpectTrafficOfSums(task, {.tp = 4, .data_parallel = true});
  }
}

TEST(PlanTraffic, Pipelines) {
  for (const auto schedule : {k1F1B, kInterleaved, kZeroBubbleH1, kZeroBubbleV}) {
    ExpectTrafficOfSums(Gpt2(DType::kF32), {.pp = 2, .schedule = schedule});
    Task task = Llama(DType::kBF16);
    task.model.tie_embeddings = true;
    ExpectTrafficOfSums(task, {.pp = 2, .schedule = schedule});
  }
  Task task = Gpt2(DType::kF32);
  task.model.n_layer = 6;
  ExpectTraffic(task, {.pp = 4, .schedule = kInterleaved});
  ExpectTraffic(task, {.pp = 4, .schedule = kZeroBubbleV});
}

TEST(PlanTraffic, ContextParallel) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (Task task : {Gpt2(dtype), Llama(dtype)}) {
      for (const int64_t pairs : {2, 4}) {
        task.virtual_cp = pairs;
        ExpectTraffic(task, {.cp = 2, .data_parallel = true});
      }
      ExpectTraffic(task, {.cp = 4, .data_parallel = true});
      task.fast = true;
      ExpectTraffic(task, {.cp = 2, .data_parallel = true}, 0.01);
    }
  }
}

TEST(PlanTraffic, ExpertParallel) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Task task = Gpt2(dtype);
    task.model.mixture = {.n_expert = 4, .n_expert_used = 4, .n_inner = 64};  // chunks across ranks
    ExpectTrafficOfSums(task, {.copies = 2, .ep = 2, .data_parallel = true}, 0.01);
    ExpectTrafficOfSums(task, {.copies = 4, .ep = 2, .data_parallel = true}, 0.01);
    ExpectTrafficOfSums(task, {.copies = 4, .ep = 4, .data_parallel = true}, 0.01);
  }
}

// A mixture to all of whose experts every token goes, so that their rows are known.
Task Mixture(DType dtype) {
  Task task = Gpt2(dtype);
  task.model.mixture = {.n_expert = 4, .n_expert_used = 4, .n_inner = 128};
  task.model.mixture.balance_loss = 0.05;
  return task;
}

TEST(PlanTraffic, TensorAndContextParallel) {
  for (Task task : {Gpt2(DType::kBF16), Llama(DType::kF32), Mixture(DType::kF32)}) {
    task.virtual_tp = 2;
    task.virtual_cp = 2;
    ExpectTrafficOfSums(task, {.tp = 2, .cp = 2, .data_parallel = true}, 0.01);
    ExpectTrafficOfSums(task, {.copies = 2, .tp = 2, .cp = 2, .data_parallel = true}, 0.01);
    ExpectTrafficOfSums(task, {.tp = 2, .cp = 2, .pp = 2, .schedule = k1F1B});
    ExpectTrafficOfSums(task, {.tp = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleV});
  }
}

TEST(PlanTraffic, MixturesOfTensorOrContextParallelRanks) {
  for (Task task : {Mixture(DType::kF32), Mixture(DType::kBF16)}) {
    task.virtual_tp = 4;
    ExpectTrafficOfSums(task, {.tp = 2, .data_parallel = true});
    ExpectTrafficOfSums(task, {.copies = 2, .tp = 4, .data_parallel = true}, 0.01);
    ExpectTrafficOfSums(task, {.tp = 2, .pp = 2, .schedule = kInterleaved});
    ExpectTrafficOfSums(task, {.tp = 2, .pp = 2, .schedule = kZeroBubbleH1});
    task.virtual_tp = 1;
    task.virtual_cp = 2;
    ExpectTrafficOfSums(task, {.cp = 2, .data_parallel = true}, 0.01);
    ExpectTrafficOfSums(task, {.cp = 2, .pp = 2, .schedule = kZeroBubbleH1});
  }
}

TEST(PlanTraffic, ExpertParallelAndOtherModes) {
  Task task = Mixture(DType::kBF16);
  task.virtual_tp = 2;
  ExpectTrafficOfSums(task, {.copies = 2, .tp = 2, .ep = 2, .data_parallel = true}, 0.01);
  ExpectTrafficOfSums(task, {.copies = 4, .tp = 2, .ep = 2, .data_parallel = true}, 0.01);
  ExpectTrafficOfSums(task, {.copies = 2, .tp = 2, .ep = 2, .pp = 2, .schedule = k1F1B}, 0.01);
  for (const auto schedule : {k1F1B, kInterleaved, kZeroBubbleV}) {
    ExpectTrafficOfSums(Mixture(DType::kF32), {.copies = 2, .ep = 2, .pp = 2, .schedule = schedule},
                        0.01);
  }
  ExpectTrafficOfSums(Mixture(DType::kF32), {.copies = 4, .ep = 2, .pp = 2, .schedule = k1F1B},
                      0.01);
  task.virtual_tp = 1;
  for (const int64_t pairs : {2, 4}) {
    task.virtual_cp = pairs;
    ExpectTraffic(task, {.cp = 2, .ep = 2, .data_parallel = true});
    ExpectTraffic(task, {.copies = 2, .cp = 2, .ep = 2, .data_parallel = true}, 0.01);
    ExpectTraffic(task, {.copies = 2, .cp = 2, .ep = 4, .data_parallel = true}, 0.01);
  }
  ExpectTraffic(task, {.cp = 4, .ep = 2, .data_parallel = true});
  task.virtual_cp = 2;
  task.virtual_tp = 2;
  ExpectTrafficOfSums(task, {.tp = 2, .cp = 2, .ep = 2, .data_parallel = true});
  // Large beside the chunks of the norm, as above.
  task = Mixture(DType::kBF16);
  task.model.vocab_size = 2048;
  task.model.n_layer = 1;
  task.model.n_embd = 512;
  task.model.mixture.n_inner = 512;
  ExpectTrafficOfSums(task, {.shards = 4, .ep = 2, .options = dist::Zero3()}, 0.05);
}

TEST(PlanTraffic, Compositions) {
  Task task = Gpt2(DType::kBF16);
  task.virtual_tp = 2;
  ExpectTrafficOfSums(task, {.copies = 2, .tp = 2, .data_parallel = true}, 0.01);
  ExpectTrafficOfSums(task, {.copies = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleH1}, 0.01);
  Task llama = Llama(DType::kF32);
  llama.virtual_cp = 2;
  ExpectTrafficOfSums(llama, {.copies = 2, .cp = 2, .data_parallel = true}, 0.01);
  ExpectTrafficOfSums(llama, {.cp = 2, .pp = 2, .schedule = kZeroBubbleV});
  task.model.n_embd = 512;
  task.model.n_layer = 1;
  const Plan sharded{.shards = 2, .tp = 2, .options = dist::Zero3()};
  ExpectTrafficOfSums(task, sharded, 0.05);
}

}  // namespace
}  // namespace lockstep::models
