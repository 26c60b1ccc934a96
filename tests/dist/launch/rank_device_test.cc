// Which GPU and how many threads a rank takes, by what schedulers tell it.
#include "dist/launch/rank_device.h"

#include <gmock/gmock-matchers.h>

#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::HasSubstr;

Rendezvous Local(int rank, int size, int processors = 0) {
  return {.rank = rank,
          .world_size = size,
          .local_rank = rank,
          .local_world_size = size,
          .processors = processors};
}

TEST(GpuOfRank, IsThatWithTheLocalRank) {
  EXPECT_EQ(GpuOfRank(Local(3, 4), 4, {}), 3);
  // srun --gpus-per-task=1 --tres-bind=gres/gpu:none
  EXPECT_EQ(GpuOfRank(Local(3, 4), 4, {{"SLURM_GPUS_PER_TASK", "1"}}), 3);
  EXPECT_THAT(MessageOf<InputError>([] { GpuOfRank(Local(3, 4), 2, {}); }),
              AllOf(HasSubstr("local rank 3"), HasSubstr("2 GPUs")));
  EXPECT_THAT(MessageOf<InputError>([] { GpuOfRank(Local(1, 4), 1, {}); }), HasSubstr("1 GPUs"));
}

TEST(GpuOfRank, IsOneOfItsOwnWhereItSeesNoOthers) {
  EXPECT_EQ(GpuOfRank(Local(3, 4), 1, {{"CUDA_VISIBLE_DEVICES", "5"}}), 0);
  EXPECT_EQ(GpuOfRank(Local(3, 4), 1, {{"SLURM_GPUS_PER_TASK", "1"}}), 0);
  EXPECT_LT(GpuOfRank(Local(3, 4), 2, {{"SLURM_GPUS_PER_TASK", "2"}}), 2);
  // Ranks that all see the same two would share them.
  EXPECT_THAT(MessageOf<InputError>([] {
                GpuOfRank(Local(3, 4), 2, {{"CUDA_VISIBLE_DEVICES", "0,1"}});
              }),
              HasSubstr("at most one rank per GPU"));
  EXPECT_THAT(MessageOf<InputError>([] {
                GpuOfRank(Local(0, 2), 0, {{"SLURM_GPUS_PER_TASK", "1"}});
              }),
              HasSubstr("0 GPUs"));
}

TEST(ThreadsOfRank, AreItsShareUnlessItHasFewerOfItsOwn) {
  EXPECT_EQ(ThreadsOfRank(Local(0, 4), 64, 64), 16);
  EXPECT_EQ(ThreadsOfRank(Local(0, 4), 8, 64), 8) << "bound to 8 by mpirun";
  EXPECT_EQ(ThreadsOfRank(Local(0, 4), 8, 8), 2) << "a container with 8";
  EXPECT_EQ(ThreadsOfRank(Local(0, 8), 4, 4), 1);
  // A job that has 16 of the node's 64: srun --cpu-bind=none, and bound to 2 of them.
  EXPECT_EQ(ThreadsOfRank(Local(0, 2, 16), 16, 64), 8);
  EXPECT_EQ(ThreadsOfRank(Local(0, 2, 16), 2, 64), 2);
}

}  // namespace
}  // namespace lockstep::dist
