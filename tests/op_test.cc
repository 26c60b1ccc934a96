// The checks of tests/op_check.h as separate tests for every op, sample and dtype, named
// <op>.<check>/<sample>/<dtype>. --device=sim (or cuda) runs the CUDA kernels instead of the CPU's.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "core/cuda/device.h"
#include "tests/op_check.h"

namespace lockstep {
namespace {

class CheckTest : public testing::Test {
 public:
  explicit CheckTest(std::function<check::Result()> run) : run_(std::move(run)) {}
  void TestBody() override {
    const check::Result result = run_();
    EXPECT_TRUE(result.passed()) << result.error;
  }

 private:
  std::function<check::Result()> run_;
};

void Add(const OpCase& c, const std::string& name, const std::function<check::Result()>& run) {
  testing::RegisterTest(c.name.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                        [run]() -> testing::Test* { return new CheckTest(run); });
}

using Check = check::Result (*)(const OpCase&, const OpSample&, DType, Device);

void AddSampleOnCpu(const OpCase& c, const OpSample& s) {
  for (DType dtype : c.dtypes) {
    auto add = [&](const char* name, Check check) {
      Add(c, StrCat(name, "/", s.name, "/", dtype), [=, &c] { return check(c, s, dtype, kCpu); });
    };
    add("Forward", check::Forward);
    add("Determinism", check::Determinism);
    add("Meta", [](const OpCase& op, const OpSample& sample, DType type, Device) {
      return check::Meta(op, sample, type);
    });
    if (!check::HasGradient(c, s)) continue;
    if (dtype != DType::kF64) add("Gradient", check::Gradient);
    add("Accumulation", check::Accumulation);
    add("Subsets", check::Subsets);
    add("Overwriting", check::Overwriting);
  }
  if (check::HasGradient(c, s) && s.finite_differences) {
    Add(c, StrCat("FiniteDifferences/", s.name),
        [=, &c] { return check::FiniteDifferences(c, s, kCpu); });
  }
}

// The checks of the kernels themselves; the CPU's tests cover the rest (unnoticed writes, shapes on
// the meta device).
void AddSampleOnCuda(const OpCase& c, const OpSample& s, Device device) {
  for (DType dtype : check::DTypesOn(c, device)) {
    auto add = [&](const char* name, Check check) {
      Add(c, StrCat(name, "/", s.name, "/", dtype), [=, &c] { return check(c, s, dtype, device); });
    };
    add("Orders", check::Orders);
    add("Unaligned", check::Unaligned);
    if (!check::HasGradient(c, s)) continue;
    add("Accumulation", check::Accumulation);
    add("Subsets", check::Subsets);
  }
}

void AddAll(Device device) {
  for (const OpCase& c : AllOpCases()) {
    if (device.is_cpu()) Add(c, "Declaration", [&c] { return check::Declaration(c); });
    for (const OpSample& s : c.samples()) {
      if (s.benchmark_only) continue;
      device.is_cpu() ? AddSampleOnCpu(c, s) : AddSampleOnCuda(c, s, device);
    }
    for (const ErrorSample& e : c.errors ? c.errors() : std::vector<ErrorSample>{}) {
      Add(c, StrCat("Error/", e.name), [e, device] { return check::ErrorMessage(e, device); });
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

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string device = "cpu";
  for (int i = 1; i < argc; ++i) {
    const std::string prefix = "--device=", argument = argv[i];
    if (argument.starts_with(prefix)) device = argument.substr(prefix.size());
  }
  if (device == "cuda" && lockstep::cuda::DeviceCount() == 0) {
    std::puts("there is no GPU here: no test was run");
    return 0;
  }
  lockstep::AddAll(lockstep::cuda::ParseDevice(device));
  return RUN_ALL_TESTS();
}
