// The rows of a task with the examples that stand before each: what a model is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/evaluate/harness_tasks.h"

namespace lockstep::models {

struct Question {
  std::string before;  // description and examples
  Example example;
  std::string place;  // of its row
};

struct QuestionGroup {
  std::string name;  // empty for a task without groups
  std::vector<Question> questions;
};

// The first `limit` questions (0: all) of each group, in the order of the file, each after `shots`
// examples; groups in the order in which they appear. Examples are drawn by Python's
// random.Random(1234), one question after the other, as the harness draws them in one process with
// its default seed. InputError as ReadRows and Row, and where there are too few examples.
std::vector<QuestionGroup> ReadQuestions(const HarnessTask& task, const std::string& folder,
                                         int64_t shots, int64_t limit);

}  // namespace lockstep::models
