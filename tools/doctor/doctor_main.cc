// bazel run -c opt //tools:doctor
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "dist/launch/launch.h"
#include "models/options/invocation.h"
#include "models/options/options.h"
#include "tools/doctor/checks.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    std::string folder = ".";
    models::Options options(
        {.name = "doctor",
         .summary = "Says what this machine has for training, what is slow or missing, and what to "
                    "do about it. Exit code 0: all that was looked at works; 1: not all.",
         .example = "doctor --folder=/scratch",
         .takes_file = false});
    options.Add("folder", &folder,
                {.operational = true, .doc = "where runs will write, which is looked at, too"});
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    std::vector<tools::Finding> findings;
    for (const auto& part :
         {tools::CheckProcessors({}), tools::CheckMemory({}), tools::CheckFolder(folder),
          tools::CheckGpus({}), tools::CheckNumbers()}) {
      findings.insert(findings.end(), part.begin(), part.end());
    }
    std::fputs(tools::Screen(findings, models::TerminalColumns()).c_str(), stdout);
    models::CheckOutput();
    const auto broken = [](const tools::Finding& f) {
      return f.verdict == tools::Finding::Verdict::kBroken;
    };
    return std::ranges::any_of(findings, broken) ? 1 : 0;
  } catch (const std::exception& e) {
    return dist::EndWith("doctor", e);
  }
}
