// Tasks whose answers a model generates.
#include <algorithm>
#include <utility>

#include "models/evaluate/answer_filters.h"
#include "models/evaluate/eval_task.h"
#include "models/evaluate/harness_tasks.h"
#include "models/evaluate/questions.h"
#include "models/evaluate/statistics.h"
#include "models/gpt/generate.h"

namespace lockstep::models {
namespace {

constexpr int64_t kAnswerTokens = 256;  // the harness' default
constexpr std::string_view kStops[] = {"Question:", "</s>", "<|im_end|>"};

class AnswerTask : public EvalTask {
 public:
  AnswerTask(const HarnessTask& task, const RequestEncoder& encoder, const TaskOptions& options)
      : name_(task.name),
        shots_(options.shots < 0 ? task.shots : options.shots),
        tokenizer_(encoder.tokenizer()) {
    for (const QuestionGroup& group : ReadQuestions(task, options.folder, shots_, options.limit)) {
      for (const Question& question : group.questions) {
        try {
          prompts_.push_back(
              encoder.Prompt(question.before + question.example.context(0), kAnswerTokens));
        } catch (const InputError& e) {
          throw InputError(StrCat(question.place, ": ", e.what()));
        }
        references_.push_back(question.example.continuation(0));
      }
    }
  }

  std::vector<TaskResult> Run(Gpt& model, const ScoreOptions& options) const override {
    const Evaluators& ranks = options.evaluators;
    // Texts end where they end: ranks whose forwards meet generate all of them.
    const int64_t step = ranks.meet_in_forward ? 1 : ranks.count;
    const int64_t first = ranks.meet_in_forward ? 0 : ranks.own;
    const size_t n = references_.size();
    std::vector<double> right(2 * n);
    const int64_t all = (static_cast<int64_t>(n) + step - 1) / step;
    for (int64_t done = 0; done < all; done += options.batch_size) {
      if (options.stop && options.stop()) throw EvaluationStopped();
      std::vector<GenerateSequence> batch;
      std::vector<size_t> questions;
      for (int64_t i = done; i < std::min(all, done + options.batch_size); ++i) {
        const auto question = static_cast<size_t>(first + i * step);
        if (question >= n) continue;
        questions.push_back(question);
        batch.push_back({.prompt = prompts_[question]});
      }
      const std::vector<std::string> answers = Generate(model, batch, options.batch_size);
      for (size_t i = 0; i < answers.size(); ++i) {
        const std::string& reference = references_[questions[i]];
        right[questions[i]] = IsExactMatch(StrictAnswer(answers[i]), reference);
        right[n + questions[i]] = IsExactMatch(FlexibleAnswer(answers[i]), reference);
      }
      if (options.progress) options.progress(std::min(all, done + options.batch_size), all);
    }
    if (ranks.sum && !ranks.meet_in_forward) ranks.sum(&right);
    TaskResult result{name_, shots_, static_cast<int64_t>(n), {}};
    for (const auto& [filter, begin] :
         {std::pair("strict-match", size_t{0}), std::pair("flexible-extract", n)}) {
      const std::span<const double> of_filter = std::span(right).subspan(begin, n);
      result.figures.push_back({"exact_match", filter, Mean(of_filter), MeanError(of_filter)});
    }
    return {result};
  }

 private:
  // The likeliest answers, up to what ends one.
  std::vector<std::string> Generate(Gpt& model, const std::vector<GenerateSequence>& batch,
                                    int64_t batch_size) const {
    std::vector<std::string> texts(batch.size());
    const data::SpecialIds special = tokenizer_.special_ids();
    GenerateBatch(model, batch, std::min(tokenizer_.vocab_size(), model.config().vocab_size),
                  {.tokens = kAnswerTokens, .temperature = 0, .batch_size = batch_size},
                  [&](int64_t sequence, int32_t id) {
                    if (id == tokenizer_.end_of_text() || id == special.eos) return false;
                    std::string& text = texts[static_cast<size_t>(sequence)];
                    text += tokenizer_.TokenText(id);
                    for (const std::string_view stop : kStops) {
                      const size_t at = text.find(stop);
                      if (at == std::string::npos) continue;
                      text.resize(at);
                      return false;
                    }
                    return true;
                  });
    return texts;
  }

  const std::string name_;
  const int64_t shots_;
  const data::Tokenizer& tokenizer_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::string> references_;
};

}  // namespace

std::unique_ptr<EvalTask> MakeAnswerTask(const HarnessTask& task, const RequestEncoder& encoder,
                                         const TaskOptions& options) {
  return std::make_unique<AnswerTask>(task, encoder, options);
}

}  // namespace lockstep::models
