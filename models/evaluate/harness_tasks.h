// The tasks of lm-evaluation-harness (EleutherAI, release 0.4.13) that Lockstep knows, as data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/evaluate/task_rows.h"

namespace lockstep::models {

// A row as text.
struct Example {
  std::vector<std::string> contexts;       // one; where the options differ in it, one for each
  std::vector<std::string> continuations;  // one, or one for each choice
  int64_t gold = 0;                        // which of them is right

  const std::string& context(size_t i) const { return contexts[contexts.size() > 1 ? i : 0]; }
  const std::string& continuation(size_t i) const {
    return continuations[continuations.size() > 1 ? i : 0];
  }
  size_t options() const { return std::max(contexts.size(), continuations.size()); }
};

struct HarnessTask {
  enum class Kind {
    kChoice,    // the likeliest of several texts
    kLastWord,  // how likely one text is, and whether it is what the model would say
    kAnswer,    // a text that the model generates
  };
  // Which rows become examples before a question ("few-shot").
  enum class Draw {
    kRandom,      // any
    kRandomLess,  // one more than needed, less the question itself
    kFirst,       // the first ones
  };

  std::string_view name;
  Kind kind;
  // Files below the folder of tasks, NAME/SPLIT.jsonl: the questions, and where examples come from.
  std::string_view questions, examples;
  Draw draw;
  int64_t shots = 0;  // examples where the user does not say how many
  // Whether accuracy is also computed by log-probabilities per character and per byte.
  bool normalizes = false;
  std::string_view dataset, config;  // Hugging Face's names
  Example (*read)(const Row& row);
  // Text before all examples; null: none. Rows of different `group` are tasks apart, with examples
  // from their own group.
  std::string (*group)(const Row& row) = nullptr;
  std::string (*description)(const std::string& group) = nullptr;
};

std::span<const HarnessTask> HarnessTasks();

// The line of Python that writes a task's file below `folder`.
std::string HowToWrite(const HarnessTask& task, std::string_view split, const std::string& folder);
std::string PathOf(const HarnessTask& task, std::string_view split, const std::string& folder);

}  // namespace lockstep::models
