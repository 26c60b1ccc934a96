// The plan of a run, and the memory that the allocator measures in train_gpt.
//
// A quarter of the table is run; all of it by
//   bazel test --test_env=LOCKSTEP_MEMORY_ROWS=all //tests/models:memory_table_test
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/cuda/device.h"
#include "core/io/file.h"
#include "models/train/memory_plan.h"
#include "models/train/run_setup.h"
#include "tests/models/parsed_run.h"
#include "tests/sanitized.h"
#include "tests/subprocess.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

struct Row {
  const char* name;
  int ranks;
  bool gpu;
  Arguments model, options;
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

const Arguments kGpt2 = {"--model.n_layer=4", "--model.n_head=4", "--model.n_embd=128"};
const Arguments kGpt2Untied = {"--model.n_layer=3",      "--model.n_head=4",
                               "--model.n_embd=96",      "--model.tie_embeddings=false",
                               "--model.bias=true",      "--model.dropout=0.1",
                               "--model.vocab_size=2000"};
const Arguments kLlama = {"--model.n_layer=4",     "--model.n_head=4",
                          "--model.n_kv_head=2",   "--model.n_embd=128",
                          "--model.norm=rms_norm", "--model.activation=swiglu",
                          "--model.position=rope", "--model.tie_embeddings=false"};
const Arguments kLlamaTied = {"--model.n_layer=3",         "--model.n_head=2",
                              "--model.n_embd=96",         "--model.norm=rms_norm",
                              "--model.activation=swiglu", "--model.position=rope",
                              "--model.vocab_size=3000"};
constexpr const char* kBf16 = "--train.precision=bf16";
constexpr const char* kFp16 = "--train.precision=fp16";
constexpr const char* kOrdered = "--dist.reduction=ordered";
constexpr const char* kFull = "--parallel.shard=full";
constexpr const char* kBlock = "--train.recompute=block";
constexpr const char* kOffload = "--train.offload=activations";

const std::vector<Row> kRows = {
    {"gpt2", 1, false, kGpt2, {}},
    {"llama_tied_bf16", 1, false, kLlamaTied, {kBf16}},
    {"llama", 1, false, kLlama, {}},
    {"gpt2_untied_accumulated", 1, false, kGpt2Untied, {"--train.grad_accum=3"}},

    {"gpt2_fp16", 1, false, kGpt2, {kFp16, "--train.grad_accum=2"}},
    {"llama_pure_bf16",
     1,
     false,
     kLlama,
     {kBf16, "--optim.master_weights=false", "--optim.state_dtype=bf16",
      "--train.grad_dtype=bf16"}},
    {"gpt2_block", 1, false, kGpt2, {kBlock}},
    {"llama_mlp_bf16", 1, false, kLlama, {kBf16, "--train.recompute=mlp"}},

    {"gpt2_operations", 1, false, kGpt2, {"--train.recompute=gelu,layer_norm"}},
    {"gpt2_ordered_on_2", 2, false, kGpt2, {kOrdered, "--train.grad_accum=2"}},
    {"llama_optimizer_on_2_bf16", 2, false, kLlama, {kBf16, "--parallel.shard=optimizer"}},
    {"gpt2_gradients_on_4", 4, false, kGpt2, {"--parallel.shard=gradients", kOrdered}},

    {"gpt2_full_on_2", 2, false, kGpt2, {kFull, "--train.grad_accum=2"}},
    {"llama_full_on_4_block", 4, false, kLlama, {kFull, kBlock}},
    {"llama_tied_full_on_2_of_4_bf16",
     4,
     false,
     kLlamaTied,
     {kFull, kBf16, "--parallel.shard_ranks=2", kOrdered}},
    {"gpt2_full_kept_on_2",
     2,
     false,
     kGpt2Untied,
     {kFull, "--parallel.reshard_after_forward=false"}},

    {"gpu_gpt2", 1, true, kGpt2, {}},
    {"gpu_gpt2_offload", 1, true, kGpt2, {kOffload, "--train.grad_accum=2"}},
    {"gpu_llama_block_bf16", 1, true, kLlama, {kBf16, kBlock}},
    {"gpu_llama_offload_block_bf16", 1, true, kLlamaTied, {kBf16, kOffload, kBlock}},

    {"gpu_gpt2_on_2", 2, true, kGpt2, {}},
    {"gpu_llama_full_on_2_bf16", 2, true, kLlama, {kFull, kBf16}},
    {"gpu_gpt2_full_on_4_offload", 4, true, kGpt2, {kFull, kOffload}},
    {"gpu_llama_gradients_on_2_fp16",
     2,
     true,
     kLlamaTied,
     {"--parallel.shard=gradients", kFp16, "--train.recompute=mlp"}},
};

// Of each four rows the second, or all.
std::vector<Row> Drawn(const std::vector<Row>& rows) {
  const char* const which = std::getenv("LOCKSTEP_MEMORY_ROWS");
  if (which != nullptr && std::string(which) == "all") return rows;
  std::vector<Row> drawn;
  for (size_t i = 1; i < rows.size(); i += 4) drawn.push_back(rows[i]);
  return drawn;
}

Arguments All(const Row& row) {
  Arguments all = {"--train.steps=3",
                   "--optim.warmup=1",
                   "--train.eval_every=0",
                   "--train.eval_batches=1",
                   "--train.sample_tokens=0",
                   "--threads=1",
                   "--train.cuda_graphs=false",
                   row.gpu ? "--device=sim" : "--device=cpu",
                   row.gpu ? "--model.block_size=32" : "--model.block_size=64",
                   row.gpu ? "--train.batch_size=6" : "--train.batch_size=8"};
  for (const Arguments* part : {&row.model, &row.options}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

MemoryPlan PlanOf(const Row& row) {
  const ParsedRun run(All(row));
  const Device device = row.gpu ? Device{DeviceType::kCuda, 0} : kCpu;
  return PlanMemory(PrepareRun(run.options, run.config, {}, device, row.ranks));
}

std::string Folder(const Row& row) {
  return JoinPath(testing::TempDir(), StrCat("memory_", row.name));
}

Result Train(const Row& row, const std::string& limit = "8G") {
  RemoveTree(Folder(row));
  Arguments command = {"models/train_gpt", StrCat("--nproc=", row.ranks),
                       "--out_dir=" + Folder(row)};
  if (row.ranks == 1) command.erase(command.begin() + 1);
  for (const std::string& argument : All(row)) command.push_back(argument);
  return RunProgram(command, {{"CUDASIM_DEVICES", StrCat(row.ranks)}, {"CUDASIM_MEMORY", limit}});
}

// The last line of the first rank's metrics.
nlohmann::json LastStep(const Row& row) {
  std::istringstream lines(ReadFile(JoinPath(Folder(row), "metrics.jsonl")));
  std::string line, last;
  while (std::getline(lines, line)) last = line;
  return nlohmann::json::parse(last);
}

void Tell(const Row& row, int64_t planned, double measured) {
  std::printf("%-32s planned %9lld measured %9.0f: %+.2f%%\n", row.name,
              static_cast<long long>(planned), measured,
              100 * (static_cast<double>(planned) / measured - 1));
}

bool CannotRun(const Row& row) { return row.gpu && !cuda::kSimulated; }

class MemoryTable : public testing::TestWithParam<Row> {};

TEST_P(MemoryTable, ThePlanIsWhatTheAllocatorMeasures) {
  const Row& row = GetParam();
  if (CannotRun(row)) GTEST_SKIP() << "for simulated GPUs, of which there are enough";
  const Result run = Train(row);
  ASSERT_EQ(run.exit_code, 0) << run;
  const double measured = LastStep(row)["memory_bytes"];
  const MemoryPlan plan = PlanOf(row);
  const auto planned = static_cast<double>(plan.peak.total());
  EXPECT_NEAR(planned, measured, 0.01 * measured) << Table(plan, kCpu);  // 3% are promised
  Tell(row, plan.peak.total(), measured);
}

INSTANTIATE_TEST_SUITE_P(Rows, MemoryTable, testing::ValuesIn(Drawn(kRows)),
                         [](const testing::TestParamInfo<Row>& info) { return info.param.name; });

// CUDA graphs keep segments of some MiB, which are live for the allocator.
class MemoryOfGraphs : public testing::TestWithParam<Row> {};

TEST_P(MemoryOfGraphs, IsWhatTheAllocatorReserves) {
  const Row& row = GetParam();
  if (CannotRun(row) || test::kSanitized) GTEST_SKIP() << "for simulated GPUs with a cache";
  const Result run = Train(row);
  ASSERT_EQ(run.exit_code, 0) << run;
  const double measured = LastStep(row)["memory_bytes"];
  const MemoryPlan plan = PlanOf(row);
  EXPECT_GT(measured, 1.03 * static_cast<double>(plan.peak.total()));
  EXPECT_NEAR(static_cast<double>(plan.reserved), measured, kPlanTolerance * measured);
  Tell(row, plan.reserved, measured);
}

constexpr const char* kGraphs = "--train.cuda_graphs=true";
const std::vector<Row> kGraphRows = {
    {"graphs_llama_block_bf16", 1, true, kLlama, {kGraphs, kBf16, kBlock}},
    {"graphs_gpt2", 1, true, kGpt2, {kGraphs, "--train.batch_size=12"}}};
INSTANTIATE_TEST_SUITE_P(Rows, MemoryOfGraphs, testing::ValuesIn(Drawn(kGraphRows)),
                         [](const testing::TestParamInfo<Row>& info) { return info.param.name; });

TEST(MemoryTableTest, HasTwentyFourDifferentRows) {
  EXPECT_EQ(kRows.size(), 24u);
  std::set<Arguments> different;
  for (const Row& row : kRows) {
    Arguments all = All(row);
    all.push_back(StrCat(row.ranks));
    different.insert(all);
  }
  EXPECT_EQ(different.size(), kRows.size());
}

// ---- A model that is too large for a GPU. ----

const Arguments kLarge = {"--model.n_layer=6", "--model.n_head=2", "--model.n_embd=128",
                          "--train.batch_size=8", "--train.steps=2"};

TEST(MemoryLimit, ShardingRecomputationAndOffloadTrainWhatDoesNotFit) {
  const Row alone{"limit_alone", 1, true, kLarge, {}};
  if (CannotRun(alone)) GTEST_SKIP() << "a simulated GPU's memory is as small as is asked for";
  const std::vector<Row> others = {{"limit_full_on_4", 4, true, kLarge, {kFull}},
                                   {"limit_block", 1, true, kLarge, {kBlock}},
                                   {"limit_offload", 1, true, kLarge, {kOffload}}};
  const int64_t needed = PlanOf(alone).peak.total();
  // Somewhat less than it needs; the others need far less, but for the blocks of some MiB that the
  // allocator takes.
  const int64_t limit = needed / 100 * 98;
  for (const Row& row : others) EXPECT_LT(PlanOf(row).peak.total(), needed / 100 * 85) << row.name;
  const std::string kib = StrCat(limit / 1024, "K");
  const Result refused = Train(alone, kib);
  EXPECT_EQ(refused.exit_code, 1) << refused;
  EXPECT_THAT(refused.err, HasSubstr("What would fit: "));
  for (const Row& row : others) {
    const Result run = Train(row, kib);
    ASSERT_EQ(run.exit_code, 0) << row.name << run;
    EXPECT_LE(int64_t{LastStep(row)["memory_bytes"]}, limit) << row.name;
  }
  // With enough memory. Offload lowers what the allocator measures by what the plan says.
  const Result run = Train(alone);
  ASSERT_EQ(run.exit_code, 0) << run;
  for (const Row& row : {others[1], others[2]}) {
    EXPECT_EQ(LastStep(row)["loss"], LastStep(alone)["loss"]) << row.name;
    const double planned = static_cast<double>(needed - PlanOf(row).peak.total());
    const double measured =
        double{LastStep(alone)["memory_bytes"]} - double{LastStep(row)["memory_bytes"]};
    EXPECT_NEAR(planned, measured, kPlanTolerance * measured) << row.name;
  }
}

}  // namespace
}  // namespace lockstep::models
