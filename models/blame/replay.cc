#include "models/blame/replay.h"

#include <cstdlib>
#include <map>

#include "core/error.h"
#include "core/io/file.h"
#include "core/system/shell_word.h"
#include "models/checkpoint/checkpoint_store.h"

namespace lockstep::models {
namespace {

// The folders of a run's checkpoints, by step.
std::map<int64_t, std::string> CheckpointsOf(const std::string& out_dir) {
  std::map<int64_t, std::string> all;
  for (const Checkpoint& c : CheckpointStore(out_dir).List()) all[c.step] = c.path;
  return all;
}

std::string EndOf(const std::string& text) {
  constexpr size_t kEnd = 2000;
  return text.size() <= kEnd ? text : "..." + text.substr(text.size() - kEnd);
}

}  // namespace

void StartTogether(ReplayedRun& a, ReplayedRun& b, int64_t last) {
  const auto of_a = CheckpointsOf(a.out_dir), of_b = CheckpointsOf(b.out_dir);
  for (const auto& [step, path] : of_a) {
    const auto other = of_b.find(step);
    if (step > last || other == of_b.end()) continue;
    a.checkpoint = path;
    b.checkpoint = other->second;
  }
}

void Replay(const ReplayedRun& run, const std::string& folder, int64_t step,
            const std::string& event) {
  MakeDirectories(folder);
  std::vector<std::string> words = {run.train_gpt, JoinPath(run.out_dir, "config.toml")};
  if (run.ranks > 1) words.push_back(StrCat("--nproc=", run.ranks));
  for (const std::string& option :
       {StrCat("out_dir=", JoinPath(folder, "run")),
        StrCat("checkpoint.resume=", run.checkpoint.empty() ? "none" : run.checkpoint),
        StrCat("log.ops=", step, event.empty() ? "" : ":", event),
        // What bits do not depend on.
        std::string("log.fingerprints=1"), std::string("log.trace="),
        std::string("checkpoint.every=0"), std::string("checkpoint.mirror="),
        std::string("checkpoint.save_initial=false"), std::string("train.eval_every=0"),
        std::string("eval.every=0"), std::string("train.sample_every=0"),
        std::string("dist.elastic=false")}) {
    words.push_back("--" + option);
  }
  std::string command;
  for (const std::string& word : words) command += ShellWord(word) + " ";
  const std::string log = JoinPath(folder, "log");
  if (std::system((command + "> " + ShellWord(log) + " 2>&1").c_str()) != 0 ||
      !PathExists(JoinPath(JoinPath(folder, "run"), OpEventsFile(step, 0)))) {
    throw InputError(StrCat(run.out_dir, " cannot be played again to step ", step, ":\n  ", command,
                            "\nfailed:\n", EndOf(ReadFile(log))));
  }
}

std::vector<std::vector<OpEvent>> EventsOf(const std::string& folder, int64_t step, int64_t ranks) {
  std::vector<std::vector<OpEvent>> events;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    events.push_back(ReadOpEvents(JoinPath(JoinPath(folder, "run"), OpEventsFile(step, rank))));
  }
  return events;
}

}  // namespace lockstep::models
