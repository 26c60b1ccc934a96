#include "models/train/run_tasks.h"

#include <utility>

namespace lockstep::models {
namespace {

const data::Tokenizer& TokenizerFor(const RunSetup& setup) {
  if (setup.dataset.tokenizer) return *setup.dataset.tokenizer;
  throw InputError(
      "eval.tasks are texts, and the data are tokens without their tokenizer: name it with "
      "data.tokenizer, or leave eval.tasks out");
}

}  // namespace

Evaluators EvaluatorsAmong(StepRanks& ranks) {
  return {.count = ranks.evaluators(),
          .own = ranks.evaluator(),
          .sum = [&ranks](auto* values) { ranks.SumOverEvaluators(values); },
          .meet_in_forward = true};
}

RunTasks::RunTasks(const RunSetup& setup)
    : setup_(setup), encoder_(TokenizerFor(setup), setup.window(), setup.model.vocab_size) {
  const EvalTaskOptions& eval = setup.config.eval;
  for (const std::string& name : ParseTasks(eval.tasks)) {
    tasks_.push_back(MakeTask(name, encoder_,
                              {.folder = eval.data,
                               .shots = eval.shots,
                               .limit = eval.limit,
                               .all_errors = setup.start.evaluates}));
  }
}

bool RunTasks::DueAfter(int64_t step) const {
  const int64_t every = setup_.config.eval.every,
                period = every > 0 ? every : setup_.config.train.eval_every;
  return period > 0 && step % period == 0;
}

std::optional<std::vector<TaskResult>> RunTasks::Run(Gpt& model, StepRanks& ranks,
                                                     const std::function<bool()>& stop) const {
  const ScoreOptions options{.batch_size = setup_.config.train.batch_size,
                             .evaluators = EvaluatorsAmong(ranks),
                             .stop = stop};
  std::vector<TaskResult> results;
  try {
    for (const auto& task : tasks_) {
      for (TaskResult& result : task->Run(model, options)) results.push_back(std::move(result));
    }
  } catch (const EvaluationStopped&) {
    return std::nullopt;
  }
  return results;
}

std::unique_ptr<RunTasks> MakeRunTasks(const RunSetup& setup) {
  return setup.config.eval.tasks.empty() ? nullptr : std::make_unique<RunTasks>(setup);
}

std::vector<std::pair<std::string, double>> NamedFigures(const std::vector<TaskResult>& results) {
  std::vector<std::pair<std::string, double>> figures;
  for (const TaskResult& result : results) {
    if (!result.part_of.empty()) continue;
    for (const Figure& figure : result.figures) {
      const std::string filter = figure.filter == "none" ? "" : " " + figure.filter;
      figures.emplace_back(StrCat(result.task, " ", figure.metric, filter), figure.value);
    }
  }
  return figures;
}

}  // namespace lockstep::models
