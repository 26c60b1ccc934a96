#include "models/checkpoint/host_snapshot.h"

#include <gmock/gmock-matchers.h>

#include <mutex>

#include "tests/models/checkpoint/saved_ranks.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using HostSnapshotTest = SavedRanksTest;

// It writes from where its tensors are, before it returns from Save.
TEST_F(HostSnapshotTest, ARankWithoutMemoryForASnapshotWritesWhileTheOthersTrain) {
  for (const Plan& plan : {Plan{1, 1}, Plan{4, 1}, Plan{1, 2}}) {
    const std::string out = Path(StrCat(plan.shards, "x", plan.copies));
    const int poor = plan.shards / 2;
    Save(plan, out + "sync", /*async=*/false, {11, 12, 13});
    std::mutex mutex;
    std::vector<std::string> warnings;
    const auto options_of = [&](int rank) {
      CheckpointSaverOptions options;
      if (rank == poor) options.max_snapshot_bytes = 0;
      options.warn = [&](const std::string& text) {
        const std::lock_guard<std::mutex> lock(mutex);
        warnings.push_back(text);
      };
      return options;
    };
    OnRanks(
        plan, [&](int) { return out; }, options_of,
        Saves(/*async=*/true, {11, 12, 13}, [&](Rank& rank, CheckpointSaver& saver) {
          if (rank.share.rank == poor) {
            EXPECT_TRUE(saver.Ended());
          }
        }));
    EXPECT_THAT(warnings,
                ElementsAre(AllOf(HasSubstr(plan.ranks() > 1 ? StrCat("rank ", poor) : "the host"),
                                  HasSubstr("cannot hold a copy"))));
    for (const int64_t step : {11, 12, 13}) {
      const std::string sync = Folder(out + "sync", step), mixed = Folder(out, step);
      for (const std::string& name : ListDirectory(sync)) {
        EXPECT_EQ(ReadFile(JoinPath(sync, name)), ReadFile(JoinPath(mixed, name))) << name;
      }
    }
  }
}

TEST_F(HostSnapshotTest, WithoutMemoryATensorIsNoCopy) {
  const Tensor x = Tensor::Full({1000}, 1, DType::kF32);
  HostSnapshot small(kCpu, /*max_bytes=*/9 << 20);  // a block
  small.Begin();
  EXPECT_NE(small.Add(x).raw_data(), x.raw_data());
  EXPECT_TRUE(small.complete());
  const Tensor large = Tensor::Full({3 << 20}, 1, DType::kF32);
  EXPECT_EQ(small.Add(large).raw_data(), large.raw_data());
  EXPECT_FALSE(small.complete());
  small.Begin();
  EXPECT_TRUE(small.complete());
  if (test::kSanitized) GTEST_SKIP() << "sanitizers end a program that asks for so much";
  HostSnapshot any(kCpu);
  any.Begin();
  constexpr int64_t kBytes = int64_t{1} << 50;  // of the address space
  const Tensor huge = Tensor::FromStorage(
      Storage::Wrap(const_cast<void*>(x.raw_data()), kBytes, kCpu, nullptr), DType::kU8, {kBytes});
  EXPECT_EQ(any.Add(huge).raw_data(), x.raw_data());
  EXPECT_FALSE(any.complete());
}

}  // namespace
}  // namespace lockstep::models
