// Prints, for every differentiable op and sample, how exact its gradients are:
//   bazel run //tests:gradcheck -- --filter=attention
//   bazel run //tests:gradcheck -- --filter=attention --device=sim
#include <CLI/CLI.hpp>
#include <cstdio>

#include "core/cuda/device.h"
#include "tests/op_check.h"

namespace lockstep {
namespace {

struct Totals {
  int checks = 0, failures = 0;
};

void Report(Totals& totals, const std::string& sample, const char* against, DType dtype,
            const check::Result& result) {
  ++totals.checks;
  totals.failures += !result.passed();
  std::printf("%-40s %-5s %-20s %8lld %12.3e %12.3e  %s\n", sample.c_str(),
              std::string(Name(dtype)).c_str(), against, static_cast<long long>(result.compared),
              result.max_absolute, result.max_relative, result.passed() ? "ok" : "FAILED");
  if (!result.passed()) std::printf("    %s\n", result.error.c_str());
  std::fflush(stdout);
}

void CheckSample(Totals& totals, const OpCase& c, const OpSample& s, Device device) {
  const std::string name = StrCat(c.name, "/", s.name);
  if (device.is_cpu() && s.finite_differences) {
    Report(totals, name, "finite differences", DType::kF64, check::FiniteDifferences(c, s, device));
  }
  for (DType dtype : check::DTypesOn(c, device)) {
    if (dtype == DType::kF64) continue;
    Report(totals, name, "f64 backward", dtype, check::Gradient(c, s, dtype, device));
  }
}

int Run(int argc, char** argv) {
  CLI::App app{
      "Checks gradients: the f64 backward against finite differences of the op and of its\n"
      "reference, and the backward in every other dtype against the CPU's f64 one. CUDA devices\n"
      "have no f64: there only the latter."};
  std::string filter, device = "cpu";
  bool list = false;
  app.add_option("--filter", filter, "Ops, or op/sample, whose name contains this");
  app.add_option("--device", device, "Where to run: cpu, cuda[:i], sim[:i], auto")
      ->capture_default_str();
  app.add_flag("--list", list, "Print the names of the samples and do nothing");
  CLI11_PARSE(app, argc, argv);
  const Device where = cuda::ParseDevice(device);

  const std::vector<const OpCase*> cases = FindOpCases(filter);
  Totals totals;
  if (!list) {
    std::printf("%-40s %-5s %-20s %8s %12s %12s\n", "op/sample", "dtype", "against", "elements",
                "max abs", "max rel");
  }
  for (const OpCase* c : cases) {
    for (const OpSample& s : c->samples()) {
      if (s.benchmark || !check::HasGradient(*c, s) || !SelectsSample(filter, *c, s)) continue;
      if (list) {
        std::printf("%s/%s\n", c->name.c_str(), s.name.c_str());
        ++totals.checks;
      } else {
        CheckSample(totals, *c, s, where);
      }
    }
  }
  LS_CHECK(totals.checks > 0, "--filter=", filter, " selects only ops without gradients");
  if (!list) std::printf("%d checks, %d failures\n", totals.checks, totals.failures);
  return totals.failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradcheck: %s\n", error.what());
    return 2;
  }
}
