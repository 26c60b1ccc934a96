// A few rounds of soak.py, without a time limit; run soak.py itself for many rounds.
#include <gmock/gmock-matchers.h>

#include "tests/subprocess.h"

namespace lockstep {
namespace {

TEST(Soak, KilledAndStoppedRanksAreNamedAndTheRunEndsAsIfNothingHadHappened) {
  const Result r = RunProgram({"tests/dist/launch/soak.py", "--launch=tools/launch",
                               "--train_gpt=models/train_gpt", "--kills=2", "--stops=1",
                               "--pauses=1", "--heartbeat=5", "--name_limit=0"});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_THAT(r.out, testing::HasSubstr("all rounds ok"));
}

}  // namespace
}  // namespace lockstep
