// Tasks whose figures follow from log-probabilities: choices, last words, texts.
#include <algorithm>
#include <cmath>
#include <utility>

#include "data/text/document_reader.h"
#include "data/text/text_files.h"
#include "data/utf8.h"
#include "models/evaluate/eval_task.h"
#include "models/evaluate/harness_tasks.h"
#include "models/evaluate/python_text.h"
#include "models/evaluate/questions.h"
#include "models/evaluate/statistics.h"

namespace lockstep::models {
namespace {

ScoreRequest PairOf(const Question& question, size_t option, const std::string& delimiter,
                    const RequestEncoder& encoder) {
  try {
    return encoder.Pair(question.before + question.example.context(option),
                        delimiter + question.example.continuation(option));
  } catch (const InputError& e) {
    throw InputError(StrCat(question.place, ": ", e.what()));
  }
}

Figure MeanFigure(const std::string& metric, std::span<const double> values) {
  return {.metric = metric, .value = Mean(values), .error = MeanError(values)};
}

class ChoiceTask : public EvalTask {
 public:
  ChoiceTask(const HarnessTask& task, const RequestEncoder& encoder, const TaskOptions& options)
      : task_(task), shots_(options.shots < 0 ? task.shots : options.shots) {
    for (const QuestionGroup& group : ReadQuestions(task, options.folder, shots_, options.limit)) {
      groups_.push_back({group.name, questions_.size(), group.questions.size()});
      for (const Question& question : group.questions) {
        const Example& e = question.example;
        questions_.push_back({.first = requests_.size(), .gold = static_cast<size_t>(e.gold)});
        for (size_t i = 0; i < e.options(); ++i) {
          requests_.push_back(PairOf(question, i, " ", encoder));
          const std::string& choice = e.continuation(i);
          questions_.back().characters.push_back(static_cast<double>(data::CountUtf8(choice)));
          questions_.back().bytes.push_back(static_cast<double>(choice.size()));
        }
      }
    }
  }

  std::vector<TaskResult> Run(Gpt& model, const ScoreOptions& options) const override {
    const std::vector<Score> scores = ScoreRequests(model, requests_, options);
    std::vector<double> right, by_characters, by_bytes;
    for (const Choice& c : questions_) {
      const auto is_right = [&](const std::vector<double>* lengths) -> double {
        size_t best = 0;
        const auto value = [&](size_t i) {
          const double p = scores[c.first + i].log_probability;
          return lengths != nullptr ? p / (*lengths)[i] : p;
        };
        for (size_t i = 1; i < c.bytes.size(); ++i) {
          if (value(i) > value(best)) best = i;
        }
        return best == c.gold;
      };
      right.push_back(is_right(nullptr));
      by_characters.push_back(is_right(&c.characters));
      by_bytes.push_back(is_right(&c.bytes));
    }
    std::vector<TaskResult> results = {{std::string(task_.name), shots_, std::ssize(questions_)}};
    results[0].figures = {MeanFigure("acc", right)};
    if (task_.normalizes) {
      results[0].figures.push_back(MeanFigure("acc_norm", by_characters));
      results[0].figures.push_back(MeanFigure("acc_bytes", by_bytes));
    }
    if (task_.group != nullptr) AddGroups(right, &results);
    return results;
  }

 private:
  struct Choice {
    size_t first, gold;  // request of the first option; which option is right
    std::vector<double> characters = {}, bytes = {};
  };
  struct Group {
    std::string name;
    size_t first, size;  // questions
  };

  // The mean over all questions is weighted by the groups' sizes.
  void AddGroups(std::span<const double> right, std::vector<TaskResult>* results) const {
    std::vector<double> errors;
    std::vector<int64_t> sizes;
    for (const Group& group : groups_) {
      const Figure acc = MeanFigure("acc", right.subspan(group.first, group.size));
      errors.push_back(*acc.error);
      sizes.push_back(static_cast<int64_t>(group.size));
      results->push_back({StrCat(task_.name, "_", group.name),
                          shots_,
                          sizes.back(),
                          {acc},
                          std::string(task_.name)});
    }
    (*results)[0].figures[0].error = PooledError(errors, sizes);
  }

  const HarnessTask& task_;
  const int64_t shots_;
  std::vector<Group> groups_;
  std::vector<Choice> questions_;
  std::vector<ScoreRequest> requests_;
};

class LastWordTask : public EvalTask {
 public:
  LastWordTask(const HarnessTask& task, const RequestEncoder& encoder, const TaskOptions& options)
      : name_(task.name),
        shots_(options.shots < 0 ? task.shots : options.shots),
        all_errors_(options.all_errors) {
    for (const QuestionGroup& group : ReadQuestions(task, options.folder, shots_, options.limit)) {
      for (const Question& question : group.questions) {
        requests_.push_back(PairOf(question, 0, "", encoder));
        requests_.back().wants_greedy = true;
      }
    }
  }

  std::vector<TaskResult> Run(Gpt& model, const ScoreOptions& options) const override {
    std::vector<double> right, log_probabilities;
    for (const Score& score : ScoreRequests(model, requests_, options)) {
      right.push_back(score.greedy);
      log_probabilities.push_back(score.log_probability);
    }
    Figure perplexity{.metric = "perplexity", .value = Perplexity(log_probabilities)};
    if (all_errors_) perplexity.error = PerplexityError(log_probabilities);
    return {{name_, shots_, std::ssize(right), {perplexity, MeanFigure("acc", right)}}};
  }

 private:
  const std::string name_;
  const int64_t shots_;
  const bool all_errors_;
  std::vector<ScoreRequest> requests_;
};

class TextTask : public EvalTask {
 public:
  TextTask(const std::vector<std::string>& paths, const RequestEncoder& encoder) {
    const std::vector<std::string> files = data::ListTextFiles(paths);
    const data::TextOptions options{
        .type_advice = {.rows = "give it a name that ends in .jsonl to take the texts of its rows",
                        .text = "give it a name that ends in .txt to take it as it is"},
        .any_bytes = encoder.tokenizer().name() == "byte",
        .large_document_advice = "divide it"};
    data::DocumentReader reader(files, options);
    for (data::RawDocument document; reader.Next(&document);) {
      const std::string& file = files[static_cast<size_t>(document.position.file)];
      if (texts_.empty() || texts_.back().file != file) {
        texts_.push_back({.file = file, .first = requests_.size()});
      }
      Add(data::TextOf(std::move(document), files, options).text, encoder);
    }
    for (const std::string& file : files) {
      const auto text = std::ranges::find(texts_, file, &Text::file);
      if (text == texts_.end() || text->windows == 0) {
        throw InputError(StrCat(file, ": there is no text to evaluate"));
      }
    }
  }

  std::vector<TaskResult> Run(Gpt& model, const ScoreOptions& options) const override {
    const std::vector<Score> scores = ScoreRequests(model, requests_, options);
    std::vector<TaskResult> results;
    Text all{.file = "text"};
    double sum = 0;
    for (const Text& text : texts_) {
      double of_text = 0;
      for (size_t i = 0; i < text.windows; ++i) of_text += scores[text.first + i].log_probability;
      results.push_back(FiguresOf(text, of_text));
      results.back().part_of = "text";
      sum += of_text;
      all.documents += text.documents;
      all.words += text.words;
      all.bytes += text.bytes;
      all.tokens += text.tokens;
    }
    results.insert(results.begin(), FiguresOf(all, sum));
    if (texts_.size() == 1) results.pop_back();
    return results;
  }

 private:
  struct Text {
    std::string file;
    size_t first = 0, windows = 0;  // requests
    int64_t documents = 0;
    double words = 0, bytes = 0, tokens = 0;
  };

  // A document of the last file.
  void Add(const std::string& document, const RequestEncoder& encoder) {
    const std::vector<ScoreRequest> windows = encoder.Rolling(document);
    if (windows.empty()) return;
    Text& text = texts_.back();
    text.windows += windows.size();
    ++text.documents;
    text.words += static_cast<double>(CountWords(document));
    text.bytes += static_cast<double>(document.size());
    if (!encoder.prefix()) {  // nothing precedes the first token, which is not scored
      text.bytes -= static_cast<double>(encoder.tokenizer().Decode({&windows[0].ids[0], 1}).size());
    }
    for (const ScoreRequest& window : windows) text.tokens += static_cast<double>(window.scored);
    requests_.insert(requests_.end(), windows.begin(), windows.end());
  }

  static TaskResult FiguresOf(const Text& text, double log_probability) {
    const double nats = -log_probability;
    return {text.file,
            0,
            text.documents,
            {{.metric = "word_perplexity", .value = std::exp(nats / text.words)},
             {.metric = "byte_perplexity", .value = std::exp(nats / text.bytes)},
             {.metric = "token_perplexity", .value = std::exp(nats / text.tokens)},
             {.metric = "bits_per_byte", .value = nats / text.bytes / std::log(2.0)}}};
  }

  std::vector<Text> texts_;
  std::vector<ScoreRequest> requests_;
};

}  // namespace

std::unique_ptr<EvalTask> MakeChoiceTask(const HarnessTask& task, const RequestEncoder& encoder,
                                         const TaskOptions& options) {
  return std::make_unique<ChoiceTask>(task, encoder, options);
}

std::unique_ptr<EvalTask> MakeLastWordTask(const HarnessTask& task, const RequestEncoder& encoder,
                                           const TaskOptions& options) {
  return std::make_unique<LastWordTask>(task, encoder, options);
}

std::unique_ptr<EvalTask> MakeTextTask(const std::vector<std::string>& paths,
                                       const RequestEncoder& encoder) {
  return std::make_unique<TextTask>(paths, encoder);
}

}  // namespace lockstep::models
