// The examples of models/examples, as users start them.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kPage = "models/examples/";
const std::string kTransformer = "models/examples/train_transformer_";

class Examples : public RankRuns {
 protected:
  // What rank 0 printed; the others print nothing.
  std::string Transformer(int ranks, const std::string& kind, const std::string& file, int steps) {
    const auto results =
        Wait(Start(ranks, {kTransformer + kind, Path(file), std::to_string(steps)}));
    for (const Result& r : results) EXPECT_EQ(r.exit_code, 0) << r;
    for (size_t r = 1; r < results.size(); ++r) EXPECT_THAT(results[r].out, IsEmpty());
    return results[0].out;
  }
};

// The tutorial: a loop for one process, made data parallel.
TEST_F(Examples, LearnTheSameOnTwoProcesses) {
  const Result alone = RunProgram({"models/examples/train_spirals", Path("alone.safetensors")});
  ASSERT_EQ(alone.exit_code, 0) << alone.out << alone.err;
  const auto results =
      Wait(Start(2, {"models/examples/train_spirals_parallel", Path("ranks.safetensors")}));
  for (const Result& r : results) EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(results[0].out, HasSubstr("accuracy on new points"));
  EXPECT_THAT(results[1].out, IsEmpty());
  // In the first epoch, rounding has not had time to grow.
  const auto first_line = [](const std::string& out) { return out.substr(0, out.find('\n')); };
  EXPECT_EQ(first_line(results[0].out), first_line(alone.out));
  const auto names = [&](const std::string& file) {
    std::vector<std::string> all;
    const SafetensorsFile tensors = SafetensorsFile::Open(Path(file));
    for (const SafetensorsEntry& e : tensors.entries()) all.push_back(e.name);
    return all;
  };
  EXPECT_EQ(names("ranks.safetensors"), names("alone.safetensors"));
}

TEST_F(Examples, TheSmallestLoopTellsSpiralsApart) {
  const Result run = RunProgram({"models/examples/train_mlp"});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("accuracy on new points"));
}

TEST_F(Examples, TheCnnReadsDigitsAndIsReloaded) {
  const Result run = RunProgram({"models/examples/train_cnn", Path("cnn")});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("accuracy on new digits"));
  EXPECT_THAT(run.out, HasSubstr("after reloading"));
}

// The samples and the batch are not divisible by three ranks.
TEST_F(Examples, LearnOnAnyNumberOfProcesses) {
  for (const int ranks : {1, 3, 4}) {
    const auto results = Wait(Start(ranks, {"models/examples/train_spirals_parallel"}));
    for (const Result& r : results) EXPECT_EQ(r.exit_code, 0) << ranks << r.err;
    EXPECT_THAT(results[0].out, HasSubstr("accuracy on new points"));
  }
}

// The losses that are printed are sums in another order on another number of ranks.
TEST_F(Examples, TheTransformerHasTheSameBitsHoweverItIsSharedOut) {
  const std::string out = Transformer(2, "parallel", "parallel", 41);
  std::smatch m;
  ASSERT_TRUE(std::regex_search(
      out, m, std::regex("step   0  loss (.*)\nstep  20  loss .*\nstep  40  loss (.*)\n")))
      << out;
  EXPECT_LT(std::stod(m[2]), std::stod(m[1]) - 1);
  EXPECT_EQ(Transformer(2, "sharded", "sharded", 41), out);
  Transformer(1, "parallel", "alone", 41);
  Transformer(4, "sharded", "shared by four", 41);
  for (const char* file : {"sharded", "alone", "shared by four"}) {
    EXPECT_EQ(ReadFile(Path(file)), ReadFile(Path("parallel"))) << file;
  }
}

TEST_F(Examples, TheTransformerContinuesFromWhatEitherProgramSaved) {
  Transformer(2, "parallel", "whole", 30);
  for (const auto& [first, last] : {std::pair("parallel", "parallel"),
                                    {"sharded", "sharded"},
                                    {"parallel", "sharded"},
                                    {"sharded", "parallel"}}) {
    const std::string file = std::string(first) + " " + last;
    Transformer(2, first, file, 13);
    EXPECT_NE(ReadFile(Path(file)), ReadFile(Path("whole"))) << file;
    Transformer(2, last, file, 30);
    EXPECT_EQ(ReadFile(Path(file)), ReadFile(Path("whole"))) << file;
  }
}

// Lines that only one of the two has.
TEST_F(Examples, ShardingTheTransformerChangesAtMostTenLinesWhichThePageShows) {
  const Result diff = RunProgram({"/usr/bin/diff", "-U0", "--label=a", "--label=b",
                                  kTransformer + "parallel.cc", kTransformer + "sharded.cc"});
  ASSERT_EQ(diff.exit_code, 1) << diff;
  int lines = 0;
  std::string shown;  // without the first comment
  std::istringstream all(diff.out);
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("--- ") || line.starts_with("+++ ") || line.starts_with("@@")) continue;
    ++lines;
    if (line.substr(1, 2) != "//") shown += "    " + line + "\n";
  }
  EXPECT_GT(lines, 2) << diff;
  EXPECT_LE(lines, 10) << diff;
  EXPECT_THAT(ReadFile("dist/shard/README.md"), HasSubstr("\n\n" + shown + "\n"));
}

// In the library's words, and without an abort.
TEST_F(Examples, SayWhatIsWrong) {
  const std::string missing = Path("missing");
  const Result unsaved = RunProgram({kTransformer + "sharded", missing + "/file", "1"});
  EXPECT_EQ(unsaved.exit_code, 1) << unsaved;
  EXPECT_THAT(unsaved.err, AllOf(HasSubstr(missing), Not(HasSubstr("terminate"))));
  std::string said;  // a rank may learn first that another one gave up
  for (const Result& r : Wait(Start(3, {kPage + "small_gpt_sharded"}))) {
    EXPECT_EQ(r.exit_code, 1) << r;
    said += r.err;
  }
  EXPECT_THAT(said, AllOf(HasSubstr("4 micro-batches cannot be partitioned equally across 3"),
                          HasSubstr("use a multiple of 3 micro-batches"), Not(HasSubstr("train.")),
                          Not(HasSubstr("terminate"))));
}

// Else every rank would first have memory for the whole of a model that does not fit.
TEST_F(Examples, ShardBeforeTheModelHasMemory) {
  for (const std::string& file : {kTransformer + "sharded.cc", kPage + "small_gpt_sharded.cc"}) {
    const std::string text = ReadFile(file);
    EXPECT_LT(text.find("dist::FullyShard parallel("), text.find("Materialize(")) << file;
  }
}

// ---- The README's program. ----

TEST_F(Examples, TheReadmesProgramLearnsToMultiply) {
  const Result run = RunProgram({"models/examples/learn_product"});
  ASSERT_EQ(run.exit_code, 0) << run;
  std::smatch m;
  ASSERT_TRUE(std::regex_search(
      run.out, m, std::regex("^100  (\\S+) f32\\[\\] on cpu\n[\\s\\S]*1000  (\\S+) f32")))
      << run.out;
  EXPECT_LT(std::stod(m[2]), 1e-3);
  EXPECT_LT(std::stod(m[2]), std::stod(m[1]));
}

TEST_F(Examples, TheReadmeShowsItsProgram) {
  const std::string program = ReadFile("models/examples/learn_product.cc");
  std::istringstream lines(program.substr(program.find("#include")));
  std::string shown;
  for (std::string line; std::getline(lines, line);) {
    shown += (line.empty() ? "" : "    " + line) + "\n";
  }
  EXPECT_THAT(ReadFile("README.md"), HasSubstr(shown));
}

// ---- The page: one script, five ways to train it. ----

class Page : public RankRuns {
 protected:
  // What it saved; the losses that rank 0 printed, the others print nothing.
  std::string File(const std::string& program, int ranks, std::string* out = nullptr) {
    const std::string file = Path(program + std::to_string(ranks));
    const auto results = Wait(Start(ranks, {kPage + program, file}));
    for (const Result& r : results) EXPECT_EQ(r.exit_code, 0) << program << ": " << r;
    for (size_t r = 1; r < results.size(); ++r) EXPECT_THAT(results[r].out, IsEmpty()) << program;
    EXPECT_THAT(results[0].out, HasSubstr("step 40  loss ")) << program;
    if (out != nullptr) *out = results[0].out;
    return ReadFile(file);
  }
};

TEST_F(Page, EveryStepHasTheSameBits) {
  std::string by_one, losses;
  const std::string bits = File("small_gpt_data", 1, &losses);
  EXPECT_TRUE(File("small_gpt_data", 2) == bits);
  for (const char* program : {"small_gpt_sharded", "small_gpt_pipeline"}) {
    for (const int ranks : {1, 2, 4}) EXPECT_TRUE(File(program, ranks) == bits) << program << ranks;
  }
  const std::string in_parts = File("small_gpt_tensor", 1);
  for (const int ranks : {2, 4}) EXPECT_TRUE(File("small_gpt_tensor", ranks) == in_parts) << ranks;
  // The first script adds in another order.
  EXPECT_TRUE(File("small_gpt", 1, &by_one) != bits);
  const auto last = [](const std::string& out) { return std::stod(out.substr(out.rfind(' '))); };
  EXPECT_NEAR(last(by_one), last(losses), 2e-3) << by_one << losses;
  EXPECT_LT(last(losses), 3.5);  // from 4.6
}

// Each with the line numbers left out, and short.
TEST_F(Page, ShowsTheRealDifferences) {
  const std::string page = ReadFile(kPage + "README.md");
  for (const auto& [from, to] : {std::pair("small_gpt.cc", "small_gpt_data.cc"),
                                 {"small_gpt_data.cc", "small_gpt_sharded.cc"},
                                 {"small_gpt_data.cc", "small_gpt_tensor.cc"},
                                 {"small_gpt_data.cc", "small_gpt_pipeline.cc"}}) {
    const Result diff = RunProgram(
        {"/usr/bin/diff", "-U0", "--label", from, "--label", to, kPage + from, kPage + to});
    ASSERT_EQ(diff.exit_code, 1) << diff;
    const std::string shown =
        "```diff\n" + std::regex_replace(diff.out, std::regex("@@ .* @@\n"), "@@\n") + "```\n";
    EXPECT_THAT(page, HasSubstr(shown));
    EXPECT_LE(std::ranges::count(shown, '\n'), 50) << "a few lines";
  }
}

}  // namespace
}  // namespace lockstep
