// Requests, scores and figures are those of lm-evaluation-harness and nanochat.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "models/evaluate/answer_filters.h"
#include "models/evaluate/core_tasks.h"
#include "models/evaluate/eval_task.h"
#include "models/evaluate/python_random.h"
#include "models/evaluate/questions.h"
#include "tests/models/evaluate/golden.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using test::Golden;
using test::kEvals;
using test::TinyEncoder;
using test::TinyModel;

std::string NameOf(const Json& call) {
  return StrCat(call["task"].get<std::string>(), ", ", call["shots"].get<int64_t>(),
                " shots, limit ", call["limit"].get<int64_t>(), ", tokenizer ",
                call["tokenizer"].get<std::string>());
}

const HarnessTask* FindHarnessTask(const std::string& name) {
  for (const HarnessTask& task : HarnessTasks()) {
    if (task.name == name) return &task;
  }
  return nullptr;
}

TEST(HarnessParity, RequestsAndTheirScores) {
  const auto model = TinyModel();
  int calls = 0;
  for (const Json& call : Golden()["calls"]) {
    const HarnessTask* const task = FindHarnessTask(call["task"]);
    if (task == nullptr || task->kind == HarnessTask::Kind::kAnswer) continue;
    SCOPED_TRACE(NameOf(call));
    const RequestEncoder encoder = TinyEncoder(call["tokenizer"]);
    const std::string delimiter = task->kind == HarnessTask::Kind::kChoice ? " " : "";
    // The harness has groups in another order.
    std::map<std::pair<std::string, std::string>, const Json*> expected;
    for (const Json& request : call["requests"]) {
      expected[{request[0], request[1]}] = &request;
    }
    std::vector<ScoreRequest> requests;
    std::vector<const Json*> answers;
    for (const QuestionGroup& group : ReadQuestions(*task, kEvals, call["shots"], call["limit"])) {
      for (const Question& question : group.questions) {
        for (size_t i = 0; i < question.example.options(); ++i) {
          const std::string context = question.before + question.example.context(i);
          const std::string continuation = delimiter + question.example.continuation(i);
          const auto answer = expected.find({context, continuation});
          ASSERT_NE(answer, expected.end()) << context << continuation;
          answers.push_back(answer->second);
          requests.push_back(encoder.Pair(context, continuation));
          requests.back().wants_greedy = true;
        }
      }
    }
    ASSERT_EQ(requests.size(), call["requests"].size());
    const std::vector<Score> scores = ScoreRequests(*model, requests, {.batch_size = 3});
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_NEAR(scores[i].log_probability, (*answers[i])[2].get<double>(), 1e-4);
      EXPECT_EQ(scores[i].greedy, (*answers[i])[3].get<bool>());
    }
    ++calls;
  }
  EXPECT_EQ(calls, 18);
}

TEST(HarnessParity, Figures) {
  const auto model = TinyModel();
  std::set<std::string> tasks;
  for (const Json& call : Golden()["calls"]) {
    SCOPED_TRACE(NameOf(call));
    const std::string name = call["task"];
    const RequestEncoder encoder = TinyEncoder(call["tokenizer"]);
    const auto task =
        name == "text"
            ? MakeTextTask({kEvals + "/text.txt"}, encoder)
            : MakeTask(name, encoder,
                       {.folder = kEvals, .shots = call["shots"], .limit = call["limit"]});
    std::map<std::string, std::map<std::string, double>> figures;
    for (const TaskResult& result : task->Run(*model, {})) {
      for (const Figure& figure : result.figures) {
        figures[result.task][figure.metric + "," + figure.filter] = figure.value;
        if (figure.error) {
          figures[result.task][figure.metric + "_stderr," + figure.filter] = *figure.error;
        }
      }
    }
    int compared = 0;
    for (const auto& [of_task, expected] : call["results"].items()) {
      for (const auto& [metric, value] : expected.items()) {
        ASSERT_TRUE(figures[of_task].contains(metric)) << of_task << " " << metric;
        const double tolerance = metric == "perplexity_stderr,none" ? 1e-3 : 1e-5;
        EXPECT_NEAR(figures[of_task][metric], value.get<double>(),
                    tolerance * std::max(1.0, std::abs(value.get<double>())))
            << of_task << " " << metric;
        ++compared;
      }
    }
    EXPECT_GE(compared, 1);
    tasks.insert(name);
  }
  EXPECT_EQ(tasks.size(), 9u);
}

TEST(HarnessParity, AnswersAreReadAsTheHarnessReadsThem) {
  for (const auto& row : Golden()["filters"]["answers"]) {
    EXPECT_EQ(StrictAnswer(row[0].get<std::string>()), row[1]) << row[0];
    EXPECT_EQ(FlexibleAnswer(row[0].get<std::string>()), row[2]) << row[0];
  }
  for (const auto& row : Golden()["filters"]["matches"]) {
    EXPECT_EQ(IsExactMatch(row[0].get<std::string>(), row[1].get<std::string>()), row[2]) << row;
  }
}

TEST(HarnessParity, RandomNumbersArePythons) {
  const Json& random = Golden()["random"];
  for (const auto& row : random["samples"]) {
    EXPECT_EQ(PythonRandom(row[0]).Sample(row[1], row[2]), row[3].get<std::vector<int64_t>>());
  }
  for (const auto& row : random["shuffles"]) {
    EXPECT_EQ(PythonRandom(row[0]).Shuffled(row[1]), row[2].get<std::vector<int64_t>>());
  }
  for (const auto& row : random["numbers"]) {
    EXPECT_EQ(PythonRandom(row[0].get<uint32_t>()).Random(), row[1].get<double>());
  }
}

TEST(HarnessParity, CoreIsNanochats) {
  const auto model = TinyModel();
  const RequestEncoder encoder = TinyEncoder("");
  for (const Json& call : Golden()["core"]) {
    const std::string name = "core_" + call["task"].get<std::string>();
    const auto task =
        MakeTask(name, encoder, {.folder = kEvals, .shots = call["shots"], .limit = call["limit"]});
    const std::vector<TaskResult> results = task->Run(*model, {});
    ASSERT_EQ(results.size(), 1u);
    double right = 0;
    for (const bool one : call["right"]) right += one;
    const double rows = static_cast<double>(call["right"].size());
    EXPECT_EQ(results[0].rows, std::ssize(call["right"])) << call;
    EXPECT_DOUBLE_EQ(results[0].figures[0].value, right / rows) << call;
  }
}

// All 22 tasks, with the rows of one of the same kind, and their mean.
TEST(HarnessParity, CoreIsTheMeanOfCenteredAccuracies) {
  const test::TempFolder folder("core");
  double sum = 0;
  const auto model = TinyModel();
  const RequestEncoder encoder = TinyEncoder("");
  for (const CoreTask& task : CoreTasks()) {
    const char* const rows = task.kind == CoreTask::Kind::kChoice ? "commonsense_reasoning/copa"
                             : task.kind == CoreTask::Kind::kSchema
                                 ? "language_understanding/winograd_wsc"
                                 : "world_knowledge/jeopardy_all";
    const std::string path = folder.Path(StrCat("core/eval_data/", task.file, ".jsonl"));
    MakeDirectories(path.substr(0, path.rfind('/')));
    WriteFileAtomically(path, ReadFile(kEvals + "/core/eval_data/" + rows + ".jsonl"));
    const auto one =
        MakeTask(StrCat("core_", task.name), encoder, {.folder = folder.path(), .shots = 1});
    const TaskResult result = one->Run(*model, {})[0];
    const double guess = task.baseline / 100;
    EXPECT_DOUBLE_EQ(result.figures[1].value, (result.figures[0].value - guess) / (1 - guess));
    sum += result.figures[1].value;
  }
  const auto results =
      MakeTask("core", encoder, {.folder = folder.path(), .shots = 1})->Run(*model, {});
  ASSERT_EQ(results.size(), 23u);
  EXPECT_DOUBLE_EQ(results[0].figures[0].value, sum / 22);
}

}  // namespace
}  // namespace lockstep::models
