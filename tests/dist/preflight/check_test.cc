// launch --check, as users type it.
#include <gmock/gmock-matchers.h>

#include <sstream>

#include "core/cuda/device.h"
#include "dist/control/socket.h"
#include "tests/gpu_test.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The numbers of a rank's row in the table of pairs, and text of its other cells.
std::vector<std::string> RowOf(const std::string& report, int rank) {
  std::istringstream lines(report.substr(std::min(report.size(), report.find("pairs of ranks"))));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string w; in >> w;) words.push_back(w);
    // The table's head has no cell of a rank with itself.
    if (!words.empty() && words[0] == std::to_string(rank) && std::ranges::count(words, ".") > 0) {
      return {words.begin() + 1, words.end()};
    }
  }
  return {};
}

void ExpectATableOfPairs(const std::string& report, int ranks) {
  for (int i = 0; i < ranks; ++i) {
    const auto row = RowOf(report, i);
    ASSERT_EQ(static_cast<int>(row.size()), ranks) << report;
    for (int j = 0; j < ranks; ++j) {
      const std::string& cell = row[static_cast<size_t>(j)];
      if (i == j) {
        EXPECT_EQ(cell, ".");
      } else {
        EXPECT_GT(std::stod(cell), 0) << report;
      }
    }
  }
}

TEST(Check, RanksOnCpus) {
  const Result r = RunProgram({"tools/launch", "--check=cpu", "--nproc=4"});
  EXPECT_EQ(r.exit_code, 0) << r;
  ExpectATableOfPairs(r.out, 4);
  EXPECT_THAT(r.out, AllOf(HasSubstr("4 ranks on 1 machine"), HasSubstr(dist::HostName()),
                           HasSubstr("with the right sums"), HasSubstr("glibc")));
}

TEST(Check, RanksOnGpus) {
  const std::string device = cuda::Simulated() ? "sim" : "cuda";
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(2);
  const Result r =
      RunProgram({"tools/launch", "--check=" + device, "--nproc=2"}, {{"CUDASIM_DEVICES", "2"}});
  EXPECT_EQ(r.exit_code, 0) << r;
  ExpectATableOfPairs(r.out, 2);
  EXPECT_THAT(
      r.out, AllOf(HasSubstr("NCCL"), HasSubstr("CUDA driver"), HasSubstr("cuBLASLt"),
                   HasSubstr(device + ":0 to " + device + ":1"), HasSubstr("with the right sums")));
}

// The program ends by itself, although calls that it made never do.
TEST(Check, GpusThatDoNotAnswer) {
  if (!cuda::Simulated()) GTEST_SKIP() << "this needs simulated GPUs";
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(3);
  const auto begin = std::chrono::steady_clock::now();
  const Result r = RunProgram({"tools/launch", "--check=sim", "--nproc=3"},
                              {{"CUDASIM_DEVICES", "3"}, {"CUDASIM_NCCL_LAUNCH", "60000000"}});
  EXPECT_NE(r.exit_code, 0) << r;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  for (const std::string& text : {r.out, r.err}) {
    EXPECT_THAT(text,
                AllOf(HasSubstr("ranks 1 and 2"), HasSubstr("did not answer"), HasSubstr("ACS")));
  }
}

TEST(Check, ASingleRank) {
  const Result r = RunProgram({"tools/launch", "--check=cpu", "--nproc=1"});
  EXPECT_EQ(r.exit_code, 0) << r;
  EXPECT_THAT(r.out, HasSubstr("1 rank on 1 machine"));
}

// Both on this machine, whose ranks count as those of two.
TEST(Check, TwoLaunchers) {
  std::string address;
  try {
    address = dist::OutwardAddress();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  const std::string port = std::to_string(dist::PortOf(dist::Listen(address, 0)));
  const std::map<std::string, std::string> secret = {{"LOCKSTEP_SECRET", "s"}};
  const auto launch = [&](const std::string& node) {
    return std::vector<std::string>{"tools/launch",
                                    "--check=cpu",
                                    "--nproc=2",
                                    "--nnodes=2",
                                    "--rdzv=" + address + ":" + port,
                                    "--node_rank=" + node};
  };
  Subprocess other(launch("1"), secret);
  const Result r = RunProgram(launch("0"), secret);
  EXPECT_EQ(r.exit_code, 0) << r;
  EXPECT_EQ(other.Wait().exit_code, 0);
  ExpectATableOfPairs(r.out, 4);
  EXPECT_THAT(r.out, AllOf(HasSubstr("4 ranks on 2 machines"), HasSubstr(address),
                           HasSubstr(dist::HostName() + " (2): ")));  // its clock
}

TEST(Check, AWrongDeviceIsSaidOnce) {
  const Result r = RunProgram({"tools/launch", "--check=tpu", "--nproc=2"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("device=tpu"));
  const Result program = RunProgram({"tools/launch", "--check", "--nproc=2", "train_gpt"});
  EXPECT_EQ(program.exit_code, 2);
  EXPECT_THAT(program.err, HasSubstr("train_gpt"));
}

}  // namespace
}  // namespace lockstep
