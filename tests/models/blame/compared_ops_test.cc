#include "models/blame/compared_ops.h"

#include <gtest/gtest.h>

namespace lockstep::models {
namespace {

using Ranks = std::vector<std::vector<OpEvent>>;

OpEvent Event(const char* kind, int64_t at, std::vector<std::string> in,
              std::vector<std::string> out) {
  return {.kind = kind,
          .key = std::to_string(at),
          .name = kind,
          .at = at,
          .in = std::move(in),
          .out = std::move(out)};
}

OpEvent Call(const char* key, int64_t at, const char* in, const char* out) {
  OpEvent e = Event("collective", at, {in}, {out});
  e.key = key;
  return e;
}

// One rank's step: a weight, tokens, a seed, an operation and its backward, a sum, an update.
std::vector<OpEvent> Step() {
  return {Event("start", 0, {}, {"w"}),          Event("data", 1, {}, {"ids", "targets"}),
          Event("random", 2, {"s", "site"}, {}), Event("op", 3, {"w"}, {"y"}),
          Event("backward", 4, {"dy"}, {"dw"}),  Event("gradient", 5, {}, {"g"}),
          Event("update", 6, {"g"}, {"w2"}),     Call("world#1", 5, "dw", "g")};
}

TEST(FindParting, EqualStepsHaveNone) { EXPECT_FALSE(FindParting({Step()}, {Step()})); }

TEST(FindParting, NamesWhatDiffersThoughAllBeforeIsEqual) {
  using enum PartingCause;
  const PartingCause causes[] = {kWeights, kData,       kRandom, kKernel,
                                 kKernel,  kCollective, kUpdate, kCollective};
  for (size_t i = 0; i < std::size(causes); ++i) {
    std::vector<OpEvent> other = Step();
    (causes[i] == kRandom ? other[i].in : other[i].out).back() += " otherwise";
    // And what follows from it.
    for (size_t later = i + 1; later < 7 && i < 7; ++later) {
      if (later > 3 && !other[later].in.empty()) other[later].in[0] += " follows";
      if (!other[later].out.empty() && later > 3) other[later].out[0] += " follows";
    }
    const auto parting = FindParting({Step()}, {other});
    ASSERT_TRUE(parting);
    EXPECT_EQ(parting->cause, causes[i]) << i;
    EXPECT_EQ(parting->a.key, Step()[i].key) << i;
    EXPECT_EQ(parting->given, causes[i] == kRandom);
  }
}

TEST(FindParting, ReportsTheTensor) {
  std::vector<OpEvent> other = Step();
  other[1].out[1] = "shifted";
  EXPECT_EQ(FindParting({Step()}, {other})->tensor, 1u);
}

// Rank 0 gets a sum that differs since rank 1 gave something else.
TEST(FindParting, BlamesTheRankThatSentIt) {
  Ranks a = {
      {Call("world#1", 1, "x", "sum"), Event("op", 1, {"sum"}, {"y"})},
      {Event("op", 0, {"w"}, {"x"}), Event("op", 1, {"x"}, {"z"}), Call("world#1", 2, "x", "sum")}};
  Ranks b = a;
  b[0][0].out = b[1][2].out = {"another sum"};
  b[0][1] = Event("op", 1, {"another sum"}, {"another y"});
  b[1][0].out = b[1][1].in = b[1][2].in = {"another x"};
  const auto parting = FindParting(a, b);
  EXPECT_EQ(parting->cause, PartingCause::kKernel);
  EXPECT_EQ(parting->rank, 1);
  EXPECT_EQ(parting->a.at, 0);
  // With equal gifts, it is the collective.
  b[1] = a[1];
  b[1][2].out = {"another sum"};
  EXPECT_EQ(FindParting(a, b)->cause, PartingCause::kCollective);
}

// Keys of events but collectives are of one rank: another's event with the same key says nothing.
TEST(FindParting, KeysAreOfOneRank) {
  const Ranks a = {{Event("gradient", 5, {}, {"g"})},
                   {Event("op", 3, {"x"}, {"y"}), Event("op", 5, {"y"}, {"z"})}};
  Ranks b = {{Event("gradient", 5, {}, {"another g"})},
             {Event("op", 3, {"x'"}, {"y'"}), Event("op", 5, {"y'"}, {"z'"})}};
  const auto parting = FindParting(a, b);
  EXPECT_EQ(parting->cause, PartingCause::kCollective);
  EXPECT_EQ(parting->rank, 0);
}

// A stage of a pipeline that first differs in what it received.
TEST(FindParting, BlamesTheStageBefore) {
  const Ranks a = {{Event("op", 0, {"w"}, {"v"}), Event("op", 1, {"v"}, {"x"})},
                   {Event("op", 0, {"x"}, {"y"})}};
  const Ranks b = {{Event("op", 0, {"w"}, {"v"}), Event("op", 1, {"v"}, {"x'"})},
                   {Event("op", 0, {"x'"}, {"y'"})}};
  const auto parting = FindParting(a, b);
  EXPECT_EQ(parting->cause, PartingCause::kKernel);
  EXPECT_EQ(parting->rank, 0);
  EXPECT_EQ(parting->a.at, 1);
}

TEST(FindParting, SaysWhatNothingHasMade) {
  const Ranks a = {{Event("op", 0, {"w"}, {"x"}), Event("op", 1, {"x"}, {"y"})}};
  Ranks b = a;
  b[0][1] = Event("op", 1, {"x changed"}, {"y changed"});
  const auto parting = FindParting(a, b);
  EXPECT_EQ(parting->cause, PartingCause::kUnseen);
  EXPECT_TRUE(parting->given);
}

TEST(FindParting, SaysWhereRunsDoDifferentThings) {
  const Ranks a = {{Event("op", 0, {"w"}, {"x"}), Event("op", 1, {"x"}, {"y"})}};
  EXPECT_EQ(FindParting(a, {{a[0][0]}})->cause, PartingCause::kOtherOps);
}

}  // namespace
}  // namespace lockstep::models
