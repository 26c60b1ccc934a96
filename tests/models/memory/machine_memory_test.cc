#include "models/memory/machine_memory.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "models/memory/auto_recompute.h"
#include "tests/dist/in_process.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using Kind = MemoryFit::Kind;

constexpr int64_t kGib = int64_t{1} << 30;

RunSetup SetupOn(Device device) {
  RunSetup setup;
  setup.device = device;
  setup.config.model.block_size = 64;
  setup.model = {.vocab_size = 100, .block_size = 64, .n_layer = 4, .n_head = 4, .n_embd = 128};
  return setup;
}

MemoryPlan Plan(MemoryKinds peak) {
  MemoryPlan plan{.peak = peak, .largest = peak};
  plan.reserved = peak.total();
  return plan;
}

TEST(MachineMemory, OfThisMachineIsKnown) {
  const DeviceMemory memory = MemoryOf(kCpu);
  EXPECT_GT(memory.total, 64 << 20);
  EXPECT_GT(memory.free, 0);
  EXPECT_LE(memory.free, memory.total);
  EXPECT_GT(ResidentBytes(), 1 << 20);
  EXPECT_GE(PeakResidentBytes(), ResidentBytes());
}

TEST(MachineMemory, ARunIsComparedWithWhatThereIs) {
  const RunSetup setup = SetupOn(kCpu);
  MemoryPlan plan = Plan({.parameters = kGib, .activations = 5 * kGib});
  plan.program = kGib / 2;
  EXPECT_EQ(JudgeMemory(plan, setup, {}, 1).kind, Kind::kFits) << "unknown memory";
  EXPECT_EQ(JudgeMemory(plan, setup, {8 * kGib, 7 * kGib}, 1).kind, Kind::kFits);
  const MemoryFit tight = JudgeMemory(plan, setup, {8 * kGib, 5 * kGib}, 1);
  EXPECT_EQ(tight.kind, Kind::kTight);
  EXPECT_THAT(tight.text, AllOf(HasSubstr("needs 6.50 GiB"), HasSubstr("5.00 GiB free of 8.00 GiB"),
                                HasSubstr("What would fit: --train.batch_size=8 "
                                          "--train.grad_accum=2 ("),
                                HasSubstr("Or end other programs")));
  const MemoryFit large = JudgeMemory(plan, setup, {6 * kGib, 5 * kGib}, 1);
  EXPECT_EQ(large.kind, Kind::kTooLarge);
  EXPECT_THAT(large.text, HasSubstr("this machine has 6.00 GiB"));
  // Ranks share the memory of a machine, but each has a GPU.
  const MemoryFit two = JudgeMemory(plan, setup, {12 * kGib, 11 * kGib}, 2);
  EXPECT_EQ(two.kind, Kind::kTooLarge);
  EXPECT_THAT(two.text, HasSubstr("2 processes of this run need 13.0 GiB together"));
  const RunSetup gpu = SetupOn({DeviceType::kCuda, 0});
  EXPECT_EQ(JudgeMemory(plan, gpu, {8 * kGib, 7 * kGib}, 2).kind, Kind::kFits);
  EXPECT_EQ(JudgeMemory(plan, gpu, {5 * kGib, 5 * kGib}, 1).kind, Kind::kTooLarge);
}

// Of GPUs, what their processes keep in the memory of the machine that they are in.
TEST(MachineMemory, TheHostOfGpusIsComparedWithWhatItHas) {
  const RunSetup gpu = SetupOn({DeviceType::kCuda, 0});
  MemoryPlan plan = Plan({.parameters = kGib});
  plan.host = 3 * kGib;
  plan.snapshot = 4 * kGib;
  const DeviceMemory device{8 * kGib, 8 * kGib};
  const auto judge = [&](int64_t processes, const DeviceMemory& host) {
    return JudgeMemory(plan, gpu, device, processes, host);
  };
  EXPECT_EQ(judge(2, {}).kind, Kind::kFits) << "unknown memory";
  EXPECT_EQ(judge(2, {12 * kGib, 10 * kGib}).kind, Kind::kFits);
  // The copy to save from can be swapped, what is page-locked cannot.
  const MemoryFit tight = judge(2, {12 * kGib, 9 * kGib});
  EXPECT_EQ(tight.kind, Kind::kTight);
  EXPECT_THAT(tight.text,
              AllOf(HasSubstr("2 processes take 10.0 GiB"),
                    HasSubstr("6.00 GiB page-locked for train.offload"),
                    HasSubstr("4.00 GiB to write checkpoints from"),
                    HasSubstr("9.00 GiB free of 12.0 GiB"), HasSubstr("checkpoint.async=false")));
  plan.collects = true;  // waiting would not help
  EXPECT_THAT(judge(2, {12 * kGib, 9 * kGib}).text,
              HasSubstr("(checkpoint.sharded=true checkpoint.async=false)"));
  plan.collects = false;
  EXPECT_EQ(judge(4, {12 * kGib, 12 * kGib}).kind, Kind::kTight);
  EXPECT_EQ(judge(4, {11 * kGib, 11 * kGib}).kind, Kind::kTooLarge);
  plan.all_copy = true;
  EXPECT_EQ(judge(2, {16 * kGib, 13 * kGib}).kind, Kind::kTight);
  // The host's memory is nobody else's matter.
  EXPECT_EQ(HostFitOf(plan, kCpu, {kGib, kGib}, 1), Kind::kFits);
}

// Each process has its share of the total, or of what is free.
TEST(MachineMemory, AdviceIsForWhatAProcessHas) {
  RunSetup setup = SetupOn(kCpu);
  setup.config.train.batch_size = 64;
  const MemoryPlan plan = PlanMemory(setup);
  setup.config.train.batch_size = 32;
  const auto half =
      static_cast<int64_t>(1.05 * static_cast<double>(PlanMemory(setup).needed(kCpu)));
  setup.config.train.batch_size = 64;
  EXPECT_THAT(JudgeMemory(plan, setup, {half, half}, 1).text, HasSubstr("train.batch_size=32 "));
  EXPECT_THAT(JudgeMemory(plan, setup, {half, half}, 2).text,
              AnyOf(HasSubstr("with"), HasSubstr("make the model smaller")));
  EXPECT_THAT(JudgeMemory(plan, setup, {2 * half, 2 * half}, 2).text,
              HasSubstr("train.batch_size=32 "));
}

// The plans are of a model whose activations are most of it.
TEST(MachineMemory, AsManyLayersAreRecomputedAsMemoryAsksFor) {
  RunSetup setup = SetupOn(kCpu);
  setup.config.model.block_size = setup.model.block_size;
  setup.config.train.batch_size = 64;
  const auto automatic = ParseRecompute("auto");
  const auto total = [&](const RecomputeChoice& choice) {
    setup.model.recompute = choice;
    return PlanMemory(setup).peak.total();
  };
  const auto blocks = [](int64_t layers) {
    return RecomputeChoice{.part = RecomputeChoice::Part::kBlock, .layers = layers};
  };
  std::vector<int64_t> totals = {total({})};
  for (int64_t layers = 1; layers <= 3; ++layers) {
    totals.push_back(total(blocks(layers)));
    EXPECT_LT(totals[layers], totals[layers - 1]);
  }
  for (size_t layers = 0; layers < totals.size(); ++layers) {
    for (const int64_t spare : {0, 1}) {
      setup.model.recompute = automatic;
      const MemoryPlan plan = SettleRecompute(setup, [&](const MemoryPlan& tried) {
        return tried.peak.total() <= totals[layers] + spare;
      });
      EXPECT_EQ(plan.peak.total(), totals[layers]);
      EXPECT_EQ(setup.model.recompute.layers, static_cast<int64_t>(layers));
      EXPECT_TRUE(setup.model.recompute.automatic);
      // And the run's configuration says so.
      const RecomputeChoice written = ParseRecompute(setup.config.train.recompute);
      EXPECT_EQ(total(written), totals[layers]);
    }
  }
  EXPECT_EQ(Describe(setup.model.recompute, 4), "the blocks of the first 3 of 4 layers");
  // Nothing fits: the least that it can be, without the last layer, whose backward comes at once.
  const auto never = [](const MemoryPlan&) { return false; };
  setup.model.recompute = automatic;
  EXPECT_EQ(SettleRecompute(setup, never).peak.total(), totals[3]);
  EXPECT_LE(totals[3], total(blocks(4)));
  // The logits of a large vocabulary are the peak: here the last layer counts.
  setup.model.vocab_size = 5000;
  const int64_t three = total(blocks(3)), four = total(blocks(4));
  EXPECT_LT(four, three);
  setup.model.recompute = automatic;
  EXPECT_EQ(SettleRecompute(setup, never).peak.total(), four);
  EXPECT_EQ(Describe(setup.model.recompute, 4), "all blocks");
  EXPECT_EQ(setup.config.train.recompute, "block");
  EXPECT_EQ(Describe(blocks(1), 4), "the block of the first of 4 layers");
  // What was asked for stays.
  setup.model.recompute = blocks(2);
  const int64_t two = total(blocks(2));
  EXPECT_EQ(SettleRecompute(setup, never).peak.total(), two);
}

// Machines may have different amounts of memory.
TEST(MachineMemory, AllRanksRecomputeWhatAnyNeeds) {
  dist::RunInProcess(3, [](dist::ProcessGroup& group) {
    RunSetup setup = SetupOn(kCpu);
    setup.config.model.block_size = setup.model.block_size;
    setup.config.train.batch_size = 64;
    setup.model.recompute = ParseRecompute("auto");
    // The second rank needs all but the last layer, the others less.
    const MemoryPlan mine =
        SettleRecompute(setup, [&](const MemoryPlan&) { return group.rank() != 1; });
    EXPECT_EQ(setup.model.recompute.layers, group.rank() == 1 ? 3 : 0);
    const MemoryPlan plan = AgreeOnRecompute(setup, mine, &group);
    EXPECT_EQ(setup.model.recompute.layers, 3);
    EXPECT_EQ(setup.config.train.recompute, "block:3");
    EXPECT_EQ(plan.peak.total(), PlanMemory(setup).peak.total());
    EXPECT_EQ(plan.peak.total() < mine.peak.total(), group.rank() != 1);
  });
}

}  // namespace
}  // namespace lockstep::models
