// bazel run -c opt //tools:blame -- A B
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "dist/launch/launch.h"
#include "dist/launch/nproc.h"
#include "models/blame/blame.h"
#include "models/blame/compared_tensors.h"
#include "models/options/invocation.h"
#include "models/options/options.h"

namespace {

using namespace lockstep;

// The trainer of this build, beside this program or in the folder of //models.
std::string OwnTrainer() {
  namespace fs = std::filesystem;
  const fs::path self = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& path : {self / "train_gpt", self / "../models/train_gpt"}) {
    if (fs::exists(path)) return fs::canonical(path).string();
  }
  throw InputError(
      StrCat("there is no train_gpt in ", self.string(), ": name it by --train_gpt_a"));
}

void Say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

int Compare(const std::vector<std::string>& runs, models::BlameOptions blame, double tolerance) {
  if (runs[0].ends_with(".safetensors") && runs[1].ends_with(".safetensors")) {
    bool equal = false;
    const std::string text = models::CompareFiles(runs[0], runs[1], tolerance, &equal);
    std::fputs(text.c_str(), stdout);
    return equal ? 0 : 1;
  }
  blame.a = runs[0];
  blame.b = runs[1];
  if (blame.train_gpt_a.empty()) blame.train_gpt_a = OwnTrainer();
  if (blame.train_gpt_b.empty()) blame.train_gpt_b = blame.train_gpt_a;
  return models::Blame(blame, Say) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    models::EnterInvocationFolder();
    models::BlameOptions blame;
    double tolerance = 1e-4;
    bool only_recorded = false;
    models::Options options(
        {.name = "blame",
         .summary = "Says whether two runs with log.fingerprints are equal, or else in which step, "
                    "tensor, operation, rank and element they part first, for which it plays both "
                    "again. Of two files of tensors (tools/torch_dump.py) it compares what has the "
                    "same name. Exit code 0: they are equal; 1: they are not.",
         .example = "blame out1 out2",
         .takes_file = false});
    options.Add("train_gpt_a", &blame.train_gpt_a,
                {.operational = true,
                 .doc = "the program that plays the first run again; empty: that of this build"});
    options.Add("train_gpt_b", &blame.train_gpt_b,
                {.operational = true, .doc = "the same for the second; empty: the first one's"});
    options.Add("folder", &blame.folder,
                {.operational = true,
                 .doc = "where the runs are played again, in new folders a and b, which are kept; "
                        "empty: in a temporary folder"});
    options.Add("tolerance", &tolerance,
                {.min = 0, .doc = "for files: of a tensor's largest element"});
    options.AddFlag("recorded", &only_recorded, "only compare what was recorded; play nothing");
    std::vector<std::string> words(argv + 1, argv + argc), runs, rest;
    // Their values may be words of their own, which are no runs.
    for (const char* option : {"--train_gpt_a", "--train_gpt_b", "--folder", "--tolerance"}) {
      for (const auto& value : dist::TakeOption(option, StrCat(option, "=..."), &words)) {
        rest.push_back(StrCat(option, "=", value));
      }
    }
    for (const std::string& word : words) {
      (word.starts_with("-") ? rest : runs).push_back(word);
    }
    if (const auto exit_code = options.Start(rest)) return *exit_code;
    if (runs.size() != 2) throw InputError("name two runs, or two files: blame out1 out2");
    blame.replays = !only_recorded;
    const int code = Compare(runs, blame, tolerance);
    models::CheckOutput();
    return code;
  } catch (const std::exception& e) {
    dist::EndWith("blame", e);
    return 2;
  }
}
