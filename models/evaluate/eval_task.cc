#include "models/evaluate/eval_task.h"

#include <sstream>

#include "models/evaluate/core_tasks.h"
#include "models/evaluate/harness_tasks.h"
#include "models/evaluate/python_text.h"
#include "models/options/suggest.h"

namespace lockstep::models {
namespace {

constexpr std::string_view kCore = "core", kOneOfCore = "core_", kLlmc = "hellaswag_llmc";

void RequireKnown(const std::string& name) {
  std::vector<Candidate> candidates;
  for (const std::string& task : TaskNames()) {
    if (task == name) return;
    candidates.push_back({task});
  }
  std::string known, meant;
  for (const HarnessTask& task : HarnessTasks()) known += StrCat(task.name, ", ");
  for (const std::string& near : Nearest(name, candidates)) {
    meant += StrCat(meant.empty() ? " (did you mean " : " or ", near);
  }
  throw InputError(StrCat("there is no task ", name, meant.empty() ? "" : meant + "?)",
                          "; the tasks are ", known, kCore, ", one of its tasks as core_arc_easy, ",
                          "and ", kLlmc));
}

}  // namespace

std::vector<std::string> TaskNames() {
  std::vector<std::string> names;
  for (const HarnessTask& task : HarnessTasks()) names.emplace_back(task.name);
  names.emplace_back(kCore);
  for (const CoreTask& task : CoreTasks()) names.push_back(StrCat(kOneOfCore, task.name));
  names.emplace_back(kLlmc);
  return names;
}

std::vector<std::string> ParseTasks(const std::string& names) {
  std::vector<std::string> tasks;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    name = Strip(name);
    if (name.empty()) continue;
    RequireKnown(name);
    tasks.push_back(name);
  }
  return tasks;
}

std::unique_ptr<EvalTask> MakeTask(const std::string& name, const RequestEncoder& encoder,
                                   const TaskOptions& options) {
  if (name == kCore) return MakeCoreTask("", encoder, options);
  if (name == kLlmc) return MakeLlmcTask(encoder, options);
  for (const HarnessTask& task : HarnessTasks()) {
    if (task.name != name) continue;
    switch (task.kind) {
      case HarnessTask::Kind::kChoice:
        return MakeChoiceTask(task, encoder, options);
      case HarnessTask::Kind::kLastWord:
        return MakeLastWordTask(task, encoder, options);
      case HarnessTask::Kind::kAnswer:
        return MakeAnswerTask(task, encoder, options);
    }
  }
  return MakeCoreTask(name.substr(kOneOfCore.size()), encoder, options);
}

}  // namespace lockstep::models
