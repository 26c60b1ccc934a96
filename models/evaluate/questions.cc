#include "models/evaluate/questions.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "models/evaluate/python_random.h"

namespace lockstep::models {
namespace {

constexpr uint32_t kSeed = 1234;

// Draws the rows that become examples.
class Examples {
 public:
  Examples(HarnessTask::Draw draw, std::vector<Row> pool, int64_t shots)
      : draw_(draw), pool_(std::move(pool)), shots_(shots) {
    const bool less = draw == HarnessTask::Draw::kRandomLess;
    if (shots == 0 || std::ssize(pool_) >= shots + less) return;
    throw InputError(StrCat(
        shots, " examples before each question", less ? ", and one to spare," : "",
        " are more than the ", pool_.size(), " rows of ",
        pool_.empty() ? "their file" : pool_[0].place().substr(0, pool_[0].place().rfind(':'))));
  }

  std::vector<const Row*> For(const Row& question) {
    std::vector<const Row*> rows;
    if (shots_ == 0) return rows;
    if (draw_ == HarnessTask::Draw::kFirst) {
      for (int64_t i = 0; i < shots_; ++i) rows.push_back(&pool_[static_cast<size_t>(i)]);
      return rows;
    }
    const bool less = draw_ == HarnessTask::Draw::kRandomLess;
    std::vector<const Row*> all;
    for (const Row& row : pool_) all.push_back(&row);
    rows = Sample(all, shots_ + less);
    if (!less) return rows;
    const auto is_question = [&](const Row* row) { return *row == question; };
    std::erase_if(rows, is_question);
    if (std::ssize(rows) < shots_) {  // the pool has the question several times
      std::erase_if(all, is_question);
      return Sample(all, shots_);
    }
    rows.resize(static_cast<size_t>(shots_));
    return rows;
  }

 private:
  std::vector<const Row*> Sample(const std::vector<const Row*>& from, int64_t n) {
    if (std::ssize(from) < n) {
      throw InputError(StrCat(from[0]->place(), ": ", n, " examples before each question are more ",
                              "than the rows that differ from it"));
    }
    std::vector<const Row*> rows;
    for (const int64_t i : random_.Sample(std::ssize(from), n)) {
      rows.push_back(from[static_cast<size_t>(i)]);
    }
    return rows;
  }

  const HarnessTask::Draw draw_;
  const std::vector<Row> pool_;
  const int64_t shots_;
  PythonRandom random_{kSeed};
};

// As the harness writes a question that is answered. The continuation of a last word has a space
// of its own, which makes two.
std::string Answered(const Example& example) {
  const auto gold = static_cast<size_t>(example.gold);
  return example.context(gold) + " " + example.continuation(gold) + "\n\n";
}

std::string GroupOf(const HarnessTask& task, const Row& row) {
  return task.group != nullptr ? task.group(row) : "";
}

}  // namespace

std::vector<QuestionGroup> ReadQuestions(const HarnessTask& task, const std::string& folder,
                                         int64_t shots, int64_t limit) {
  const auto read = [&](std::string_view split) {
    return ReadRows(PathOf(task, split, folder), HowToWrite(task, split, folder));
  };
  std::map<std::string, std::vector<Row>> pools;
  if (shots > 0) {
    for (Row& row : read(task.examples)) {
      std::vector<Row>& pool = pools[GroupOf(task, row)];
      pool.push_back(std::move(row));
    }
  }
  std::vector<QuestionGroup> groups;
  std::map<std::string, Examples> examples;
  for (const Row& row : read(task.questions)) {
    const std::string name = GroupOf(task, row);
    auto group = std::ranges::find(groups, name, &QuestionGroup::name);
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    if (limit > 0 && std::ssize(group->questions) == limit) continue;
    const auto [drawn, is_new] =
        examples.try_emplace(name, task.draw, std::move(pools[name]), shots);
    std::string before = task.description != nullptr ? task.description(name) : "";
    for (const Row* example : drawn->second.For(row)) before += Answered(task.read(*example));
    group->questions.push_back({std::move(before), task.read(row), row.place()});
  }
  return groups;
}

}  // namespace lockstep::models
