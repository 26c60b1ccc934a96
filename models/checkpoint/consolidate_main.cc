// bazel run -c opt //models:consolidate -- --checkpoint=out/latest --to=folder
#include <cmath>
#include <cstdio>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_store.h"
#include "models/checkpoint/consolidate.h"
#include "models/options/invocation.h"
#include "models/options/options.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    std::string checkpoint = "out", to;
    double max_gb = static_cast<double>(models::kHfFileBytes) / 1e9;
    models::Options options({.name = "consolidate",
                             .summary = "Makes a Hugging Face folder from a checkpoint whose ranks "
                                        "wrote their parts (checkpoint.sharded).",
                             .example = "consolidate --checkpoint=out/latest --to=my-model",
                             .takes_file = false});
    options.Add(
        "checkpoint", &checkpoint,
        {.doc = "a checkpoint's folder, or a run's (its best checkpoint, else the latest)"});
    options.Add("to", &to, {.doc = "the folder to make"});
    options.Add(
        "max_file_gb", &max_gb,
        {.above = 0,
         .max = 1e9,
         .doc =
             "largest size of a file, in GB; a larger model is written in several, with an index"});
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    if (to.empty()) throw InputError("say which folder to make: --to=FOLDER");
    const models::HeldCheckpoint held = models::HoldCheckpoint(checkpoint);
    const std::string& folder = held.path();
    models::CheckpointStore::Verify(folder);
    models::Consolidate(folder, to, std::llround(max_gb * 1e9));
    std::printf("%s is a Hugging Face folder now\n", to.c_str());
    return 0;
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "consolidate: %s\n", e.what());
    return ExitCodeOf(e);
  }
}
