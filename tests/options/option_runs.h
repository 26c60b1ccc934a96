// Runs of train_gpt that differ in an option.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "tests/subprocess.h"

namespace lockstep {

using Arguments = std::vector<std::string>;

struct TrainingRun {
  Result result;
  std::string folder;

  // The numbers that training gave, except times and learning rates: equal for equal runs.
  std::string Numbers() const;
  std::vector<Json> Lines(const std::string& file) const;
  size_t Validations() const;
  std::vector<int> Checkpoints() const;
};

// Runs train_gpt on a small model, at most a second each; equal arguments run only once.
class OptionRuns : public testing::Test {
 protected:
  static void SetUpTestSuite();

  static std::string Path(const std::string& name);
  static const TrainingRun& Train(const Arguments& more);

 private:
  static std::string folder_;
  static std::map<Arguments, TrainingRun> runs_;
};

}  // namespace lockstep
