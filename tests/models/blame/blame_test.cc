// What is played again, from where, and into which folders. The trainer is a script that gives what
// it was told to give.
#include "models/blame/blame.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/io/file.h"
#include "models/report/fingerprints.h"
#include "models/report/op_events.h"
#include "tests/message_of.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

class Blaming : public testing::Test {
 protected:
  // A run that recorded these steps: its weights after each, and from step 1 on tokens.
  void Record(const std::string& run, const std::map<int64_t, uint64_t>& weights) const {
    MakeDirectories(folder_.Path(run));
    WriteFileAtomically(Path(run, "config.toml"), "");
    std::string lines;
    for (const auto& [step, value] : weights) {
      StepFingerprints of_step{.step = step};
      of_step.weights() = {value};
      if (step > 0) of_step.of_kind[0] = {7};
      lines += (lines.empty() ? ToJson({.parameters = {"w"}}, of_step) : ToJson(of_step)) + "\n";
    }
    WriteFileAtomically(Path(run, kFingerprintsFile), lines);
  }
  void AddCheckpoints(const std::string& run, const std::vector<const char*>& names) const {
    for (const char* name : names) {
      const std::string folder = Path(run, StrCat("checkpoints/", name));
      MakeDirectories(folder);
      WriteFileAtomically(JoinPath(folder, "DONE"), "");
    }
  }
  // A program that copies a recorded run to its out_dir, and notes how it was called.
  std::string Trainer(const std::string& run, const std::vector<int64_t>& traced) const {
    for (const int64_t step : traced) WriteFileAtomically(Path(run, OpEventsFile(step, 0)), "");
    const std::string program = folder_.Path(run + ".sh");
    WriteFileAtomically(program, StrCat("#!/bin/sh\necho \"$@\" >> ", program, ".calls\n",
                                        "for word; do case $word in --out_dir=*) ", "cp -r ",
                                        folder_.Path(run), " ${word#*=};; esac; done\n"));
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return program;
  }
  std::vector<std::string> Calls(const std::string& program) const {
    std::vector<std::string> calls;
    if (!PathExists(program + ".calls")) return calls;
    const std::string text = ReadFile(program + ".calls");
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      calls.push_back(text.substr(at, text.find('\n', at) - at));
    }
    return calls;
  }
  std::string Path(const std::string& run, const std::string& name) const {
    return JoinPath(folder_.Path(run), name);
  }
  BlameOptions Options(const std::string& program_a = "", const std::string& program_b = "") const {
    return {folder_.Path("a"), folder_.Path("b"), program_a, program_b};
  }
  // What is said.
  static std::string Said(const BlameOptions& options) {
    std::string text;
    Blame(options, [&](const std::string& line) { text += line + "\n"; });
    return text;
  }

  const test::TempFolder folder_{"blame"};
};

// What differs from step 23 on is in the checkpoints of step 30, and step 20 has only one.
TEST_F(Blaming, PlaysFromTheNewestCommonCheckpointBeforeWhatMayDiffer) {
  Record("a", {{0, 1}, {20, 2}, {40, 3}});
  Record("b", {{0, 1}, {20, 2}, {40, 4}});
  AddCheckpoints("a", {"step-00000010", "step-00000020", "step-00000030"});
  AddCheckpoints("b", {"step-00000010", "step-00000030"});
  Record("again_a", {{10, 1}, {20, 2}, {22, 3}, {23, 4}, {40, 3}});
  Record("again_b", {{10, 1}, {20, 2}, {22, 3}, {23, 5}, {40, 4}});
  const std::string a = Trainer("again_a", {23, 40}), b = Trainer("again_b", {23, 40});
  EXPECT_THAT(Said(Options(a, b)), AllOf(HasSubstr("played again to step 40"),
                                         HasSubstr("they part in step 23: first in the weights")));
  for (const std::string& program : {a, b}) {
    EXPECT_THAT(Calls(program), AllOf(SizeIs(2), Each(HasSubstr("/checkpoints/step-00000010 "))));
  }
  EXPECT_THAT(Calls(a)[1], HasSubstr("--log.ops=23 "));
}

TEST_F(Blaming, PlaysFromTheBeginningIfEveryCheckpointMayDiffer) {
  Record("a", {{0, 1}, {100, 3}});
  Record("b", {{0, 1}, {100, 4}});
  for (const char* run : {"a", "b"}) AddCheckpoints(run, {"step-00000010", "step-00000090"});
  Record("again_a", {{0, 1}, {5, 3}, {100, 3}});
  Record("again_b", {{0, 1}, {5, 4}, {100, 4}});
  const std::string a = Trainer("again_a", {5, 100}), b = Trainer("again_b", {5, 100});
  EXPECT_THAT(Said(Options(a, b)), HasSubstr("they part in step 5"));
  for (const std::string& program : {a, b}) {
    EXPECT_THAT(Calls(program), AllOf(SizeIs(2), Each(HasSubstr("--checkpoint.resume=none "))));
  }
}

TEST_F(Blaming, PlaysRunsThatBeginDifferentlyOnce) {
  Record("a", {{0, 1}, {1, 3}});
  Record("b", {{0, 2}, {1, 4}});
  const std::string a = Trainer("a", {1}), b = Trainer("b", {1});
  EXPECT_THAT(Said(Options(a, b)), HasSubstr("they part in step 1: first in the weights"));
  EXPECT_THAT(Calls(a), SizeIs(1));
  EXPECT_THAT(Calls(b), SizeIs(1));
}

// Such as that of the runs themselves.
TEST_F(Blaming, PlaysOnlyInNewFolders) {
  Record("a", {{0, 1}, {1, 3}});
  Record("b", {{0, 1}, {1, 4}});
  const std::string a = Trainer("a", {1}), b = Trainer("b", {1});
  BlameOptions options = Options(a, b);
  options.folder = folder_.path();
  EXPECT_THAT(test::MessageOf<InputError>([&] { Said(options); }),
              AllOf(HasSubstr(folder_.Path("a") + " exists already"), HasSubstr("--folder")));
  EXPECT_TRUE(PathExists(Path("a", "config.toml")) && PathExists(Path("b", "config.toml")));
  EXPECT_THAT(Calls(a), SizeIs(0));
  options.folder = folder_.Path("new");
  EXPECT_THAT(Said(options), HasSubstr("they part in step 1"));
  EXPECT_TRUE(PathExists(folder_.Path("new/a/run/config.toml")));
}

TEST_F(Blaming, EqualRunsHaveStepsInCommon) {
  Record("a", {{0, 1}, {2, 3}});
  Record("b", {{0, 1}, {2, 3}});
  EXPECT_THAT(
      Said(Options()),
      HasSubstr("equal: the fingerprints of 2 steps from 0 to 2, of data (1) and weights (1)"));
  Record("b", {{0, 1}, {3, 4}});
  EXPECT_THAT(test::MessageOf<InputError>([&] { Said(Options()); }),
              AllOf(HasSubstr("step 0, only the weights"), HasSubstr("log.fingerprints")));
}

}  // namespace
}  // namespace lockstep::models
