// The checks of tests/op_check.h as separate tests for every op, sample and dtype, named
// <op>.<check>/<sample>/<dtype>. --device=sim (or cuda) runs the CUDA kernels instead of the CPU's.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>

#include "core/cuda/device.h"
#include "tests/op_check.h"
#include "tests/selection.h"

namespace lockstep {
namespace {

class CheckTest : public testing::Test {
 public:
  explicit CheckTest(std::function<check::Result()> run) : run_(std::move(run)) {}
  void TestBody() override {
    const check::Result result = run_();
    EXPECT_TRUE(result.passed()) << result.error;
    // --gtest_output=json:FILE writes it to the file.
    if (result.hash) RecordProperty("hash", StrCat(*result.hash));
    if (result.approximated) RecordProperty("approximated", "true");
  }

 private:
  std::function<check::Result()> run_;
};

// The checks on simulated GPUs take minutes: without LOCKSTEP_TEST_ALL a quarter is selected, and
// of all, unless some are asked for by name, the half that CI draws for a commit (OP_HALF=0 or 1).
bool IsSelected(const std::string& check) {
  const size_t hash = std::hash<std::string>()(check);
  const char* const half = std::getenv("OP_HALF");
  LS_CHECK(half == nullptr || half == std::string("0") || half == std::string("1"), "OP_HALF is '",
           half, "', but must be 0 or 1");
  if (!test::TakesAll()) return hash % 4 == 0;
  return half == nullptr || GTEST_FLAG_GET(filter) != "*" || std::to_string(hash % 2) == half;
}

void AddAll(Device device, bool is_simulated) {
  for (const OpCase& c : AllOpCases()) {
    for (const check::NamedCheck& each : check::Checks(c, device)) {
      if (is_simulated && !IsSelected(c.name + each.name)) continue;
      testing::RegisterTest(c.name.c_str(), each.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [run = each.run]() -> testing::Test* { return new CheckTest(run); });
    }
  }
}

// The folders in kernels/, as the build sees them.
TEST(OpTest, EveryFolderHasACaseAndEveryCaseAFolder) {
  std::ifstream file("kernels/op_names.txt");
  std::set<std::string> folders, cases;
  for (std::string name; file >> name;) folders.insert(name);
  ASSERT_FALSE(folders.empty()) << "kernels/op_names.txt is missing: run by bazel test";
  for (const OpCase& c : AllOpCases()) cases.insert(c.name);
  for (const std::string& name : folders) {
    EXPECT_TRUE(cases.contains(name)) << "kernels/" << name << "/" << name << "_case.cc is missing";
  }
  for (const std::string& name : cases) {
    EXPECT_TRUE(folders.contains(name))
        << "the OpCase '" << name << "' is not named after its folder";
  }
}

int Run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);  // removes its own arguments, but for --help
  std::string name = "cpu";
  for (int i = 1; i < argc; ++i) {
    const std::string prefix = "--device=", argument = argv[i];
    LS_CHECK(argument.starts_with(prefix) || argument == "--help", "'", argument,
             "' is not an option; use --device=cpu, cuda or sim, or those that --help lists");
    if (argument == "--help") std::puts("\nOf op_test: --device=cpu (the default), cuda or sim");
    if (argument.starts_with(prefix)) name = argument.substr(prefix.size());
  }
  // bazel test //... passes on a machine without a GPU, and without nvcc for simulated ones.
  if (name != "cpu" && std::getenv("TEST_SRCDIR") != nullptr && cuda::DeviceCount() == 0) {
    std::puts("there is no GPU here, and without nvcc none is simulated: no test was run");
    return 0;
  }
  AddAll(cuda::ParseDevice(name), name.starts_with("sim"));
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "op_test: %s\n", error.what());
    return 2;
  }
}
