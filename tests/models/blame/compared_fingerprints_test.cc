#include "models/blame/compared_fingerprints.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep::models {
namespace {

using Kinds = std::array<std::vector<uint64_t>, 4>;

FingerprintsOfRun RunOf(const std::map<int64_t, Kinds>& steps) {
  FingerprintsOfRun run{.names = {.activations = {"ln_f"}, .parameters = {"v", "w"}}};
  for (const auto& [step, kinds] : steps) run.steps[step] = {step, kinds};
  return run;
}

const Kinds kStart = {{{}, {}, {}, {1, 2}}}, kStep = {{{3}, {4}, {5, 6}, {7, 8}}};

TEST(CompareFingerprints, CountsWhatIsCompared) {
  const auto all =
      CompareFingerprints(RunOf({{0, kStart}, {2, kStep}}), RunOf({{0, kStart}, {2, kStep}}));
  EXPECT_FALSE(all.differs);
  EXPECT_EQ(all.equal_steps, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(all.tensors, (std::array<int64_t, 4>{1, 1, 2, 2}));
  const auto start = CompareFingerprints(RunOf({{0, kStart}, {2, kStep}}), RunOf({{0, kStart}}));
  EXPECT_EQ(start.tensors, (std::array<int64_t, 4>{0, 0, 0, 2}));
  // One of them has no activations, as a step that is a graph.
  Kinds graph = kStep;
  graph[1] = {};
  EXPECT_EQ(CompareFingerprints(RunOf({{2, kStep}}), RunOf({{2, graph}})).tensors,
            (std::array<int64_t, 4>{1, 0, 2, 2}));
}

TEST(CompareFingerprints, NamesWhatIsComputedFirst) {
  Kinds other = kStep;
  other[2] = {50, 60};
  other[3] = {70, 8};
  const auto compared =
      CompareFingerprints(RunOf({{0, kStart}, {2, kStep}}), RunOf({{0, kStart}, {2, other}}));
  EXPECT_EQ(compared.differs, 2);
  EXPECT_EQ(compared.kind, 2u);
  EXPECT_EQ(compared.names, (std::vector<std::string>{"w", "v"}));
  EXPECT_EQ(compared.equal_steps, (std::vector<int64_t>{0}));
}

TEST(CompareFingerprints, NeedsAStepInCommon) {
  EXPECT_THROW(CompareFingerprints(RunOf({{1, kStep}}), RunOf({{2, kStep}})), InputError);
}

}  // namespace
}  // namespace lockstep::models
