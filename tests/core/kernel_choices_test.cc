// Which kernel choices are recorded, how slow ones are reported, and that their number stays
// bounded.
#include "core/kernel_choices.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

void Note(const char* op, int64_t size, const std::string& why_slow = "",
          const std::string& kernel = "k") {
  NoteKernelChoice(op, std::array{size},
                   {.problem = StrCat("of ", size), .kernel = kernel, .why_slow = why_slow});
}

std::vector<KernelChoice> Of(const std::string& op) {
  std::vector<KernelChoice> choices = KernelChoices();
  std::erase_if(choices, [&](const KernelChoice& c) { return c.op != op; });
  return choices;
}

TEST(KernelChoices, AProblemKeepsItsFirstEntry) {
  Note("first", 1, "", "fast");
  Note("first", 2, "", "fast");
  Note("first", 1, "", "other");
  const std::vector<KernelChoice> choices = Of("first");
  ASSERT_EQ(choices.size(), 2);
  EXPECT_EQ(choices[0].problem, "of 1");
  EXPECT_EQ(choices[0].kernel, "fast");
  EXPECT_EQ(choices[1].problem, "of 2");
}

TEST(KernelChoices, AProblemIsNewOnce) {
  const std::array<int64_t, 3> a{1, 2, 3}, b{1, 2, 4};
  for (const bool is_new : {true, false}) {
    EXPECT_EQ(IsNewProblem("asked", a), is_new);
    EXPECT_EQ(IsNewProblem("asked", b), is_new);
    EXPECT_EQ(IsNewProblem("asked, too", a), is_new);
    EXPECT_EQ(IsNewProblem("asked", std::span(a).first(2)), is_new);
  }
}

TEST(KernelChoices, SlowOnesAreCountedPerProblemAndToldOncePerReason) {
  const int64_t before = SlowKernelChoices();
  testing::internal::CaptureStderr();
  Note("told", 1);
  Note("told", 2, "no room", "plain");
  Note("told", 3, "no room", "plain");
  Note("told", 3, "no room", "plain");
  Note("told", 4, "odd address", "plain");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(SlowKernelChoices() - before, 3);
  EXPECT_EQ(said,
            "warning: told of of 2 is slower than it could be (kernel: plain): no room\n"
            "warning: told of of 4 is slower than it could be (kernel: plain): odd address\n");
}

TEST(KernelChoices, JsonHasLibrariesAndChoices) {
  testing::internal::CaptureStderr();
  Note("json", 7, "a \"reason\"", "plain");
  testing::internal::GetCapturedStderr();
  const auto json = Json::parse(KernelChoicesJson());
  EXPECT_TRUE(json["libraries"].is_array());
  const auto& last = json["choices"].back();
  EXPECT_EQ(last["op"], "json");
  EXPECT_EQ(last["problem"], "of 7");
  EXPECT_EQ(last["kernel"], "plain");
  EXPECT_EQ(last["why_slow"], "a \"reason\"");
}

TEST(KernelChoices, LoadedLibrariesAreFilesThatAreThere) {
  const std::vector<std::string> files = LoadedLibraries({"libstdc++.so", "libnothing"});
  ASSERT_EQ(files.size(), 1);
  EXPECT_THAT(files[0], HasSubstr("/libstdc++.so"));
  EXPECT_TRUE(PathExists(files[0]));
}

// The last test: it fills the list.
TEST(KernelChoices, ALongLifeHoldsNoMore) {
  for (int64_t i = 0; i < 200'000; ++i) {
    EXPECT_TRUE(IsNewProblem("ever new", std::array{i}));
    Note("ever new", i);
  }
  EXPECT_EQ(KernelChoices().size(), kMaxKernelChoices);
  // Slow choices are still reported, once.
  testing::internal::CaptureStderr();
  for (int64_t i = 0; i < 3; ++i) Note("late", i, "no room", "plain");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: late of of 0 is slower than it could be (kernel: plain): no room\n");
  EXPECT_EQ(KernelChoices().size(), kMaxKernelChoices);
}

}  // namespace
}  // namespace lockstep
