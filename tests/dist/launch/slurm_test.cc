// train_gpt under Slurm, where Debian's packages of it are installed.
#include <gmock/gmock-matchers.h>

#include "tests/subprocess.h"

namespace lockstep {
namespace {

TEST(Slurm, StepsAndBatchJobsTrainAndComeBack) {
  const Result r = RunProgram({"tests/dist/launch/slurm.sh", "models/train_gpt"});
  if (r.exit_code == 77) GTEST_SKIP() << r.err;
  EXPECT_EQ(r.exit_code, 0) << r;
  EXPECT_THAT(r.out, testing::HasSubstr("put back into the queue, to the same weights"));
}

}  // namespace
}  // namespace lockstep
