// What a run writes into its folder.
#include "models/checkpoint/run_folder.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

// It makes the same run again, and tells what that is.
TEST(RunFolder, TheConfigurationSaysWhatWasSettled) {
  const test::TempFolder folder("settled");
  RunConfig asked;
  asked.out_dir = folder.path();
  asked.train.steps = 0;
  asked.train.epochs = 2;
  asked.train.recompute = "auto";
  asked.written = {"out_dir", "train.steps", "train.epochs", "train.recompute"};
  RunConfig settled = asked;
  settled.train.steps = 120;
  settled.train.recompute = "block:3";
  BeginRun(asked, settled);
  const std::string text = ReadFile(folder.Path("config.toml"));
  EXPECT_THAT(text, HasSubstr("#   train.steps = 120\n"));
  EXPECT_THAT(text, HasSubstr("#   train.recompute = \"block:3\"\n"));
  const RunConfig again = RunConfigFromToml(text, "config.toml");
  EXPECT_TRUE(Difference(again, asked).empty()) << ToString(Difference(again, asked));
  EXPECT_EQ(again.written, asked.written);
}

}  // namespace
}  // namespace lockstep::models
