#include "models/sweep/watch_runs.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "models/options/config.h"
#include "models/report/metrics.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class WatchRuns : public testing::Test {
 protected:
  WatchRuns() {
    RemoveTree(folder_);
    MakeDirectories(folder_);
  }

  // A run of so many steps.
  void WriteRun(const std::string& name, int64_t steps) {
    const std::string run = JoinPath(folder_, name);
    MakeDirectories(run);
    WriteFileAtomically(JoinPath(run, "config.toml"), ToToml(RunConfig()));
    std::string lines;
    for (int64_t step = 1; step <= steps; ++step) {
      StepMetrics m;
      m.step = step;
      m.loss = 3;
      m.val_loss = 1 + 1.0 / static_cast<double>(step);
      lines += ToJson(m) + "\n";
    }
    WriteFileAtomically(JoinPath(run, "metrics.jsonl"), lines);
  }
  ServerResponse Get(const std::string& path) {
    return pages_.Answer({.method = "GET", .path = path});
  }

  const std::string folder_ = JoinPath(testing::TempDir(), "watched");
  RunsPages pages_{folder_};
};

TEST_F(WatchRuns, ShowsWhatIsThereNow) {
  EXPECT_THAT(Get("/").body, AllOf(HasSubstr("0 runs"), HasSubstr("http-equiv=\"refresh\"")));
  WriteRun("a", 4);
  EXPECT_THAT(Get("/").body, AllOf(HasSubstr("at step 4"), HasSubstr("1.2500")));
  WriteRun("a", 10);
  WriteRun("deep/b", 2);
  EXPECT_THAT(Get("/").body, AllOf(HasSubstr("2 runs"), HasSubstr("at step 10"),
                                   HasSubstr("1.1000"), HasSubstr("deep/b")));
  WriteFileAtomically(JoinPath(folder_, "a/DONE"), "step 10\n");
  EXPECT_THAT(Get("/").body, HasSubstr("finished, 10 steps"));
  RemoveTree(JoinPath(folder_, "a"));
  EXPECT_THAT(Get("/").body, AllOf(HasSubstr("1 run<"), Not(HasSubstr("step 10"))));
}

TEST_F(WatchRuns, ShowsReportsAndNoOtherFile) {
  WriteRun("a", 1);
  EXPECT_EQ(Get("/a/report.html").status, 404);
  WriteFileAtomically(JoinPath(folder_, "a/report.html"), "<p>the report</p>");
  EXPECT_EQ(Get("/a/report.html").body, "<p>the report</p>");
  WriteFileAtomically(JoinPath(ParentPath(folder_), "report.html"), "secret");
  for (const char* path : {"/a/config.toml", "/../report.html", "/a/../../report.html", "/a", "",
                           "//report.html", "/report.html"}) {
    const ServerResponse response = Get(path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_THAT(response.body, Not(HasSubstr("secret"))) << path;
  }
  EXPECT_EQ(pages_.Answer({.method = "POST", .path = "/"}).status, 405);
}

}  // namespace
}  // namespace lockstep::models
