// The figures of tasks, for people and for programs.
#pragma once

#include <span>
#include <string>

#include "models/evaluate/eval_task.h"

namespace lockstep::models {

// A table in Markdown, with columns as lm-evaluation-harness prints them.
std::string Table(std::span<const TaskResult> results);
// One JSON object with the harness' keys: "results", by task and "acc,none", "acc_stderr,none",
// ...; "n-shot" and "n-samples". Figures that are not finite are null.
std::string ToJson(std::span<const TaskResult> results);

}  // namespace lockstep::models
