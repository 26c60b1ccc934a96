#include "models/report/tensorboard.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/io/file.h"

namespace lockstep::models {
namespace {

class TensorBoard : public testing::Test {
 protected:
  TensorBoard()
      : folder_(JoinPath(testing::TempDir(),
                         testing::UnitTest::GetInstance()->current_test_info()->name())) {
    RemoveTree(folder_);
  }

  static StepMetrics At(int64_t step) {
    StepMetrics m;
    m.step = step;
    m.loss = static_cast<double>(step) / 8;
    m.lr = 1e-3;
    m.unix_time = 1e9 + static_cast<double>(step);
    if (step % 2 == 0) m.val_loss = 1;
    return m;
  }

  // The steps of a tag in all files, in TensorBoard's order.
  std::vector<int64_t> Steps(const std::string& tag) const {
    std::vector<int64_t> steps;
    for (const std::string& name : ListDirectory(folder_)) {
      int64_t good = 0;
      const std::string file = ReadFile(JoinPath(folder_, name));
      for (const Event& e : ParseEventFile(file, &good)) {
        for (const SummaryValue& v : e.values) {
          if (v.tag == tag) steps.push_back(e.step);
        }
      }
      EXPECT_EQ(good, static_cast<int64_t>(file.size())) << name;
    }
    return steps;
  }

  static void NoWarning(const std::string& text) { ADD_FAILURE() << text; }

  const std::string folder_;
};

TEST_F(TensorBoard, HoldsScalarsAndTexts) {
  {
    TensorBoardWriter out(folder_, 1, NoWarning);
    StepMetrics before;
    before.val_loss = 4.5;
    before.val_sources = {{"web", 4.75, 2.0}};
    out.Write(before);
    for (int64_t s = 1; s <= 3; ++s) out.Write(At(s));
    out.Write(TextSample{3, "To be", " or\nnot"}, 1e9);
    out.Flush();
    // Readers see it while the run lasts.
    EXPECT_EQ(Steps("train/loss"), (std::vector<int64_t>{1, 2, 3}));
  }
  EXPECT_EQ(Steps("validation/loss"), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(Steps("validation/loss of web"), (std::vector<int64_t>{0}));
  EXPECT_EQ(Steps("validation/bits_per_byte of web"), (std::vector<int64_t>{0}));
  EXPECT_EQ(Steps("train/memory_bytes"), (std::vector<int64_t>{}));
  int64_t good = 0;
  const auto events = ParseEventFile(ReadFile(JoinPath(folder_, ListDirectory(folder_)[0])), &good);
  EXPECT_EQ(events.front().file_version, "brain.Event:2");
  EXPECT_EQ(events.back().values[0].text, "    To be or\n    not");
  EXPECT_EQ(events[2].values[0].scalar, 0.125F);
  EXPECT_EQ(events[2].unix_time, 1e9 + 1);
}

// Killed at step 5 with a checkpoint of step 3, and again at once: each step is recorded once.
TEST_F(TensorBoard, ResumingRecordsNoStepTwice) {
  {
    TensorBoardWriter out(folder_, 1, NoWarning);
    for (int64_t s = 1; s <= 5; ++s) out.Write(At(s));
  }
  const std::string first = JoinPath(folder_, ListDirectory(folder_)[0]);
  WriteFileAtomically(first, ReadFile(first) + "half a record");
  for (int64_t from : {4, 4, 6}) {
    TensorBoardWriter out(folder_, from, NoWarning);
    for (int64_t s = from; s <= from + 2; ++s) out.Write(At(s));
  }
  EXPECT_EQ(Steps("train/loss"), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(ListDirectory(folder_).size(), 3u);  // one of the four had nothing left
}

TEST_F(TensorBoard, LeavesFilesOfOthersAlone) {
  MakeDirectories(folder_);
  const std::string other = JoinPath(folder_, "events.out.tfevents.1.somebody");
  WriteFileAtomically(other, "not ours");
  { TensorBoardWriter out(folder_, 1, NoWarning); }
  EXPECT_EQ(ReadFile(other), "not ours");
}

TEST_F(TensorBoard, AnImpossibleFolderIsAnErrorAtOnce) {
  WriteFileAtomically(folder_, "a file");
  EXPECT_THROW(TensorBoardWriter(folder_, 1, NoWarning), IoError);
}

}  // namespace
}  // namespace lockstep::models
