#include "models/report/metrics.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "core/io/json.h"
#include "models/report/format.h"
#include "models/report/json_lines.h"

namespace lockstep::models {
namespace {

using Lines = JsonLinesWriter::Lines;

void NoWarning(const std::string& text) { ADD_FAILURE() << text; }

StepMetrics At(int64_t step) {
  return {.step = step,
          .loss = 2.5,
          .grad_norm = 0.5,
          .lr = 1e-3,
          .ms = 10,
          .tokens_per_second = 100,
          .times = {.data_ms = 1, .forward_ms = 3, .backward_ms = 5, .update_ms = 1},
          .pauses = {},
          .val_loss = {}};
}

TEST(Metrics, ALinePerStepThatAnyJsonReaderTakes) {
  const std::string path = testing::TempDir() + "/metrics_plain.jsonl";
  {
    JsonLinesWriter out(path, "metrics", 1, NoWarning, Lines::kEvery);
    out.Write(ToJson(At(1)));
    StepMetrics m = At(2);
    m.val_loss = 2.25;
    m.val_bpb = 1.5;
    m.val_sources = {{"web", 2.5, 1.625}, {"chat", 2.0}};
    out.Write(ToJson(m));
    // Flushed, so that readers see it while the run lasts.
    EXPECT_EQ(ReadFile(path), ToJson(At(1)) + "\n" + ToJson(m) + "\n");
  }
  std::istringstream in(ReadFile(path));
  std::string line;
  std::getline(in, line);
  const auto first = Json::parse(line);
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["loss"], 2.5);
  EXPECT_FALSE(first.contains("val_loss"));
  std::getline(in, line);
  EXPECT_EQ(Json::parse(line)["val_loss"], 2.25);
  EXPECT_EQ(Json::parse(line)["val_bpb"], 1.5);
  EXPECT_EQ(Json::parse(line)["val_loss_of"].dump(), R"({"chat":2.0,"web":2.5})");
  EXPECT_EQ(Json::parse(line)["val_bpb_of"].dump(), R"({"web":1.625})");
  EXPECT_EQ(Json::parse(ToJson(*ParseMetrics(line))), Json::parse(line));
  EXPECT_FALSE(std::getline(in, line));
}

TEST(Metrics, ResumeDropsRepeatedStepsAndHalfALine) {
  const std::string path = testing::TempDir() + "/metrics_resume.jsonl";
  {
    JsonLinesWriter out(path, "metrics", 1, NoWarning, Lines::kEvery);
    for (int64_t s = 1; s <= 5; ++s) out.Write(ToJson(At(s)));
  }
  // The first of these steps is no int64_t, the second line is cut.
  WriteFileAtomically(path, ReadFile(path) + "{\"step\":18446744073709551615}\n{\"step\": 6, \"lo");
  {
    JsonLinesWriter out(path, "metrics", 4, NoWarning, Lines::kEvery);
    out.Write(ToJson(At(4)));
  }
  std::vector<int> steps;
  std::istringstream in(ReadFile(path));
  for (std::string line; std::getline(in, line);) steps.push_back(Json::parse(line)["step"]);
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3, 4}));
}

TEST(Metrics, MissingStepsAreTold) {
  const std::string path = testing::TempDir() + "/metrics_missing.jsonl";
  std::string lines;
  for (int64_t s = 1; s <= 9; ++s) lines += ToJson(At(s)) + "\n";
  const auto resumed = [&](const std::string& text, int64_t first_step,
                           Lines which = Lines::kEvery) {
    WriteFileAtomically(path, text);
    std::string warning;
    JsonLinesWriter out(
        path, "metrics", first_step, [&](const std::string& w) { warning += w; }, which);
    out.Write(ToJson(At(first_step)));
    std::istringstream in(ReadFile(path));
    for (std::string line; std::getline(in, line);) EXPECT_TRUE(ParseMetrics(line)) << line;
    return warning;
  };
  using testing::HasSubstr;
  EXPECT_EQ(resumed(lines, 10), "");
  EXPECT_EQ(resumed(lines, 4), "");
  EXPECT_EQ(resumed("", 1), "");
  EXPECT_THAT(resumed("", 10), HasSubstr("step 1 to 9"));
  const size_t cut = lines.find("{\"step\":4") + 20;
  EXPECT_THAT(resumed(lines.substr(0, cut), 10), HasSubstr("step 4 to 9"));
  const size_t hole = lines.find("{\"step\":6");
  EXPECT_THAT(resumed(lines.substr(0, cut) + lines.substr(hole), 10), HasSubstr("step 4 to 6:"));
  // A run that began with another one's checkpoint.
  const auto from_first = Lines::kEveryFromFirst;
  EXPECT_EQ(resumed("", 10, from_first), "");
  EXPECT_EQ(resumed(lines.substr(hole), 10, from_first), "");
  EXPECT_THAT(resumed(lines.substr(hole), 12, from_first), HasSubstr("step 10 to 11"));
}

TEST(Metrics, ReadsBackWhatItWrote) {
  StepMetrics m = At(3);
  m.pauses = {.eval_ms = 7, .sample_ms = 0, .checkpoint_ms = 8, .report_ms = 9};
  m.memory_bytes = int64_t{5} << 40;
  m.unix_time = 1.8e9 + 0.125;
  m.val_loss = 2.25;
  m.loss_scale = 4096;
  m.skipped = true;
  m.spike = true;
  m.late_rank = 1;
  m.late_ms = 12.5;
  m.late = "rank 1 on node7 (data)";
  m.kernel_ms = {{"adamw", 1.5}, {kBetweenKernels, 0.25}};
  const auto read = ParseMetrics(ToJson(m));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(ToJson(*read), ToJson(m));
  EXPECT_EQ(read->memory_bytes, m.memory_bytes);
  EXPECT_EQ(read->times.total(), read->ms);
  EXPECT_EQ(read->pauses.total(), 24);
  EXPECT_EQ(read->unix_time, m.unix_time);
  EXPECT_EQ(read->val_loss, 2.25);
  EXPECT_EQ(read->loss_scale, 4096);
  EXPECT_TRUE(read->skipped);
  EXPECT_TRUE(read->spike);
  EXPECT_EQ(read->late_rank, 1);
  EXPECT_EQ(read->late_ms, 12.5);
  EXPECT_EQ(read->late, "rank 1 on node7 (data)");
  EXPECT_EQ(ParseMetrics(ToJson(At(3)))->late_rank, -1);
  EXPECT_THAT(ToJson(At(3)), testing::Not(testing::HasSubstr("skipped")));
  for (const char* other : {"", "{", "[]", "3", "{}", "{\"step\":-1}", "{\"step\":1.5}"})
    EXPECT_FALSE(ParseMetrics(other).has_value()) << other;
}

TEST(Metrics, NonFiniteNumbersAreNullAndReadBackAsNaN) {
  StepMetrics m = At(3);
  m.loss = INFINITY;
  EXPECT_THAT(ToJson(m), testing::HasSubstr("\"loss\":null"));
  EXPECT_TRUE(std::isnan(ParseMetrics(ToJson(m))->loss));
  EXPECT_FALSE(ParseMetrics(ToJson(m))->val_loss.has_value());
}

TEST(Format, CountsDurationsAndBytes) {
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1.00k");
  EXPECT_EQ(FormatCount(999600), "1.00M");
  EXPECT_EQ(FormatCount(2490000), "2.49M");
  EXPECT_EQ(FormatCount(124.4e6), "124M");
  EXPECT_EQ(FormatDuration(8.4), "8s");
  EXPECT_EQ(FormatDuration(65), "1m05s");
  EXPECT_EQ(FormatDuration(3720), "1h02m");
  EXPECT_EQ(FormatDuration(86400 * 3 + 3600 * 4), "3d04h");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
}

}  // namespace
}  // namespace lockstep::models
