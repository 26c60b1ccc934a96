// Batches, micro-batches and ranks that fit each other.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

TEST(MicroBatches, FollowFromTheGlobalBatchSize) {
  TrainOptions train;
  train.batch_size = 8;
  EXPECT_EQ(MicroBatches(train, 4), 4);
  train.grad_accum = 3;
  EXPECT_EQ(MicroBatches(train, 4), 12);
  train.global_batch_size = 96;
  EXPECT_EQ(MicroBatches(train, 4), 12);
  train.grad_accum = 0;
  for (const int64_t ranks : {1, 2, 5, 7, 12}) EXPECT_EQ(MicroBatches(train, ranks), 12);
  EXPECT_THROW(MicroBatches(train, 0), ArgumentError);
}

// What an error advises must work.
TEST(MicroBatches, RanksWithoutAMicroBatch) {
  TrainOptions train;
  train.global_batch_size = 12;
  const auto error = [&](int64_t batch_size, int64_t ranks) {
    train.batch_size = batch_size;
    return test::MessageOf<InputError>([&] { MicroBatches(train, ranks); });
  };
  EXPECT_EQ(error(4, 4),
            "train.global_batch_size = 12 makes 3 micro-batches of train.batch_size = 4 for 4 "
            "ranks, each of which needs one: use train.global_batch_size = 16, or "
            "train.batch_size = 3, or at most 3 ranks");
  EXPECT_EQ(error(8, 2),
            "train.global_batch_size = 12 is not a multiple of train.batch_size = 8: "
            "use train.global_batch_size = 16, or train.batch_size = 6");
  EXPECT_EQ(error(1, 13),
            "train.global_batch_size = 12 is less than one sequence for each of 13 ranks: use at "
            "most 12 ranks, or train.global_batch_size = 13");
  for (const auto& [global, batch, ranks] :
       {std::tuple(16, 4, 4), std::tuple(12, 3, 4), std::tuple(12, 4, 3), std::tuple(16, 8, 2),
        std::tuple(12, 6, 2), std::tuple(12, 1, 12), std::tuple(13, 1, 13)}) {
    train.global_batch_size = global;
    train.batch_size = batch;
    EXPECT_EQ(MicroBatches(train, ranks), global / batch);
  }
}

TEST(MicroBatches, BatchesThatDoNotFit) {
  EXPECT_EQ(ErrorOf({"--train.global_batch_size=100", "--train.batch_size=16"}),
            "command line: train.global_batch_size = 100 is not a multiple of train.batch_size = "
            "16: use train.global_batch_size = 96 or 112, or train.batch_size = 10");
  EXPECT_EQ(ErrorOf({"--train.global_batch_size=10", "--train.batch_size=16"}),
            "command line: train.global_batch_size = 10 is not a multiple of train.batch_size = "
            "16: use train.global_batch_size = 16, or train.batch_size = 10");
  EXPECT_EQ(
      ErrorOf({"--train.global_batch_size=64", "--train.batch_size=16", "--train.grad_accum=3"}),
      "command line: train.grad_accum = 3 contradicts train.global_batch_size = 64, which makes 4 "
      "micro-batches of train.batch_size = 16 for 1 rank: leave train.grad_accum out, or use "
      "train.global_batch_size = 48");
  // With 2 ranks these two agree, and the options do not know the number of ranks.
  const ParsedRun run(
      {"--train.global_batch_size=64", "--train.batch_size=16", "--train.grad_accum=2"});
  EXPECT_EQ(MicroBatches(run.config.train, 2), 4);
  EXPECT_THAT(test::MessageOf<InputError>([&] { MicroBatches(run.config.train, 3); }),
              HasSubstr("for 3 ranks: leave train.grad_accum out, or use "
                        "train.global_batch_size = 96"));
  // The stronger source wins.
  const ParsedRun over_preset({"--model.preset=gpt2", "--train.grad_accum=4"});
  EXPECT_EQ(over_preset.config.train.global_batch_size, 0);
  EXPECT_EQ(MicroBatches(over_preset.config.train, 8), 32);
}

}  // namespace
}  // namespace lockstep::models
