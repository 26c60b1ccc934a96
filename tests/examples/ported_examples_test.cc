// The examples that other libraries have, too: they learn, in no more lines than there.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

const std::string kFolder = "models/examples/";

// What the program prints that the pattern captures, of its last place.
std::vector<double> Numbers(const std::string& out, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<double> numbers;
  for (auto it = std::sregex_iterator(out.begin(), out.end(), regex); it != std::sregex_iterator();
       ++it) {
    numbers.clear();
    for (size_t i = 1; i < it->size(); ++i) numbers.push_back(std::stod((*it)[i]));
  }
  return numbers;
}

std::string Output(const std::string& program) {
  const Result run = RunProgram({kFolder + program});
  EXPECT_EQ(run.exit_code, 0) << run;
  return run.out;
}

// The noise of 1e-2 leaves a loss of half its variance, and in each of 100 weights an error of
// about 1e-2 / sqrt(1000).
TEST(PortedExamples, LinearRegressionFindsTheWeights) {
  const std::string out = Output("linear_regression");
  const auto n =
      Numbers(out, "^Loss (\\S+), \\|w - w\\*\\| = (\\S+), Throughput (\\S+) \\(it/s\\)");
  ASSERT_EQ(n.size(), 3u) << out;
  EXPECT_GT(n[0], 0.3e-4);
  EXPECT_LT(n[0], 0.6e-4);
  EXPECT_LT(n[1], 5e-3);
  EXPECT_GT(n[2], 0);
}

TEST(PortedExamples, LogisticRegressionSeparatesTheClasses) {
  const std::string out = Output("logistic_regression");
  const auto n = Numbers(out, "^Loss (\\S+), Accuracy (\\S+), Throughput (\\S+) \\(it/s\\)");
  ASSERT_EQ(n.size(), 3u) << out;
  EXPECT_LT(n[0], 0.1) << "log 2 = 0.69 at first";
  EXPECT_GT(n[1], 0.98);
  EXPECT_GT(n[2], 0);
}

TEST(PortedExamples, DigitsAreRead) {
  const std::string out = Output("train_digits");
  const std::string test = "Test set: Average loss: (\\S+) \\| Accuracy: (\\S+)\n";
  const std::string first = out.substr(0, out.find("Train epoch: 2"));
  const auto before = Numbers(first, test), after = Numbers(out, test);
  ASSERT_EQ(before.size(), 2u) << out;
  ASSERT_EQ(after.size(), 2u) << out;
  EXPECT_LT(after[0], before[0] / 2) << out;
  EXPECT_GT(after[1], 0.95) << out;
}

struct Lines {
  int all = 0, code = 0;  // code: neither blank nor a comment
};

// Of C++ whose block comments have lines of their own.
Lines Count(const std::string& file) {
  std::istringstream in(ReadFile(kFolder + file));
  Lines lines;
  bool in_comment = false;
  for (std::string line; std::getline(in, line);) {
    ++lines.all;
    const size_t begin = line.find_first_not_of(' ');
    const std::string text = begin == std::string::npos ? "" : line.substr(begin);
    if (text.starts_with("/*")) in_comment = true;
    lines.code += !in_comment && !text.empty() && !text.starts_with("//");
    if (text.find("*/") != std::string::npos) in_comment = false;
  }
  return lines;
}

// The originals, counted by this function's rules on 2026-11-25:
//   examples/cpp/linear_regression.cpp and logistic_regression.cpp of ml-explore/mlx, commit
//   846d176 (2026-08-22), which include a timer that is not counted; cpp/mnist/mnist.cpp of
//   pytorch/examples, commit 77f55b9 (2025-08-25), whose data set libtorch reads: ours is counted
//   with the header that draws it.
TEST(PortedExamples, AreNoLongerThanTheOriginals) {
  struct Port {
    std::vector<std::string> files;
    Lines original;
  };
  const Port ports[] = {{{"linear_regression.cc"}, {54, 34}},
                        {{"logistic_regression.cc"}, {54, 34}},
                        {{"train_digits.cc", "digits.h"}, {154, 128}}};
  for (const Port& port : ports) {
    Lines ours;
    for (const std::string& file : port.files) {
      const Lines lines = Count(file);
      ASSERT_GT(lines.code, 10) << file;
      ours.all += lines.all;
      ours.code += lines.code;
    }
    EXPECT_LE(ours.all, port.original.all) << port.files[0];
    EXPECT_LE(ours.code, port.original.code) << port.files[0];
  }
}

}  // namespace
}  // namespace lockstep
