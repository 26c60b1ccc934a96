// CORE, the list of tasks of DataComp-LM (Li et al. 2024), by the rules of nanochat's core_eval.py.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::models {

struct CoreTask {
  enum class Kind {
    kChoice,   // the ends differ: "query", "choices", "gold"
    kSchema,   // the beginnings differ: "context_options", "continuation", "gold"
    kContinue  // the model must say it: "context", "continuation"
  };
  std::string_view name;
  std::string_view file;  // below core/eval_data, as in the bundle of its data
  Kind kind;
  int64_t shots;
  double baseline;                   // accuracy of a guess, in percent (eval_meta_data.csv)
  std::string_view delimiter = " ";  // between question and answer
};

std::span<const CoreTask> CoreTasks();

}  // namespace lockstep::models
