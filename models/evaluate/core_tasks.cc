#include "models/evaluate/core_tasks.h"

#include <algorithm>
#include <utility>

#include "core/io/file.h"
#include "models/evaluate/eval_task.h"
#include "models/evaluate/python_random.h"
#include "models/evaluate/python_text.h"
#include "models/evaluate/statistics.h"
#include "models/evaluate/task_rows.h"

namespace lockstep::models {
namespace {

using enum CoreTask::Kind;

constexpr std::string_view kAnswer = "\nAnswer: ";
constexpr CoreTask kCore[] = {
    {"hellaswag_zeroshot", "language_understanding/hellaswag", kChoice, 0, 25},
    {"jeopardy", "world_knowledge/jeopardy_all", kContinue, 10, 0, kAnswer},
    {"bigbench_qa_wikidata", "world_knowledge/bigbench_qa_wikidata", kContinue, 10, 0},
    {"arc_easy", "world_knowledge/arc_easy", kChoice, 10, 25, kAnswer},
    {"arc_challenge", "world_knowledge/arc_challenge", kChoice, 10, 25, kAnswer},
    {"copa", "commonsense_reasoning/copa", kChoice, 0, 50},
    {"commonsense_qa", "commonsense_reasoning/commonsense_qa", kChoice, 10, 40.3},
    {"piqa", "commonsense_reasoning/piqa", kChoice, 10, 50, kAnswer},
    {"openbook_qa", "commonsense_reasoning/openbook_qa", kChoice, 0, 25},
    {"lambada_openai", "language_understanding/lambada_openai", kContinue, 0, 0},
    {"hellaswag", "language_understanding/hellaswag", kChoice, 10, 25},
    {"winograd", "language_understanding/winograd_wsc", kSchema, 0, 50},
    {"winogrande", "language_understanding/winogrande", kSchema, 0, 50},
    {"bigbench_dyck_languages", "symbolic_problem_solving/bigbench_dyck_languages", kContinue, 10,
     0},
    {"agi_eval_lsat_ar", "symbolic_problem_solving/agi_eval_lsat_ar", kChoice, 3, 25},
    {"bigbench_cs_algorithms", "symbolic_problem_solving/bigbench_cs_algorithms", kContinue, 10, 0},
    {"bigbench_operators", "symbolic_problem_solving/bigbench_operators", kContinue, 10, 0},
    {"bigbench_repeat_copy_logic", "symbolic_problem_solving/bigbench_repeat_copy_logic", kContinue,
     10, 0},
    {"squad", "reading_comprehension/squad", kContinue, 10, 0},
    {"coqa", "reading_comprehension/coqa", kContinue, 0, 0},
    {"boolq", "reading_comprehension/boolq", kChoice, 10, 62, kAnswer},
    {"bigbench_language_identification", "language_understanding/bigbench_language_identification",
     kChoice, 10, 25},
};

// A row as text: the options of the beginning or of the end, of which one is right.
struct CoreRow {
  std::vector<std::string> begins, ends;
  size_t gold = 0;

  const std::string& begin(size_t i) const { return begins[begins.size() > 1 ? i : 0]; }
  const std::string& end(size_t i) const { return ends[ends.size() > 1 ? i : 0]; }
};

CoreRow Read(CoreTask::Kind kind, const Row& row) {
  CoreRow r;
  switch (kind) {
    case kChoice:
      r = {{row.Text("query")}, row.Texts("choices", 2)};
      break;
    case kSchema:
      r = {row.Texts("context_options", 2), {row.Text("continuation")}};
      break;
    case kContinue:
      return {{std::string(Strip(row.Text("context")))}, {row.Text("continuation")}};
  }
  r.gold = static_cast<size_t>(row.Index("gold", std::ssize(kind == kChoice ? r.ends : r.begins)));
  return r;
}

// How many tokens all sequences have in common at their beginnings.
int64_t CommonPrefix(const std::vector<std::vector<int32_t>>& sequences, bool from_the_end) {
  int64_t n = 0;
  for (const auto& ids : sequences) {
    int64_t common = 0;
    const auto &a = sequences[0], &b = ids;
    const int64_t most = std::min(std::ssize(a), std::ssize(b));
    const auto at = [&](const std::vector<int32_t>& x) {
      return x[static_cast<size_t>(from_the_end ? std::ssize(x) - 1 - common : common)];
    };
    while (common < most && at(a) == at(b)) ++common;
    n = &ids == &sequences[0] ? common : std::min(n, common);
  }
  return n;
}

class OneCoreTask {
 public:
  OneCoreTask(const CoreTask& task, const RequestEncoder& encoder, const TaskOptions& options)
      : task_(task), shots_(options.shots < 0 ? task.shots : options.shots) {
    const std::string folder = JoinPath(options.folder, "core");
    const std::vector<Row> rows = ReadRows(
        JoinPath(folder, StrCat("eval_data/", task.file, ".jsonl")),
        StrCat("python3 -c \"import io, urllib.request as u, zipfile; zipfile.ZipFile(io.BytesIO("
               "u.urlopen('https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip')"
               ".read())).extractall('",
               options.folder, "')\" && mv ", JoinPath(options.folder, "eval_bundle"), " ",
               folder));
    // Shuffled, so that the first ones are a sample.
    std::vector<CoreRow> data;
    for (const int64_t i : PythonRandom(1337).Shuffled(std::ssize(rows))) {
      if (options.limit > 0 && std::ssize(data) == options.limit) break;
      data.push_back(Read(task.kind, rows[static_cast<size_t>(i)]));
      places_.push_back(rows[static_cast<size_t>(i)].place());
    }
    if (shots_ > 0 && std::ssize(data) <= shots_) {
      throw InputError(StrCat(rows[0].place(), ": ", shots_, " examples before each question need ",
                              "more than ", shots_, " rows, and there are ", data.size()));
    }
    for (size_t i = 0; i < data.size(); ++i) Add(data, i, encoder);
  }

  TaskResult Run(Gpt& model, const ScoreOptions& options) const {
    const std::vector<Score> scores = ScoreRequests(model, requests_, options);
    std::vector<double> right;
    for (size_t q = 0; q < gold_.size(); ++q) {
      const size_t first = first_[q],
                   n = (q + 1 < first_.size() ? first_[q + 1] : scores.size()) - first;
      if (task_.kind == kContinue) {
        right.push_back(scores[first].greedy);
        continue;
      }
      // The least mean loss of the tokens that differ.
      size_t best = 0;
      const auto loss = [&](size_t i) {
        return -scores[first + i].log_probability /
               static_cast<double>(requests_[first + i].scored);
      };
      for (size_t i = 1; i < n; ++i) {
        if (loss(i) < loss(best)) best = i;
      }
      right.push_back(best == gold_[q]);
    }
    const double guess = task_.baseline / 100, acc = Mean(right), error = MeanError(right);
    return {StrCat("core_", task_.name),
            shots_,
            std::ssize(right),
            {{.metric = "acc", .value = acc, .error = error},
             {.metric = "centered",
              .value = (acc - guess) / (1 - guess),
              .error = error / (1 - guess)}}};
  }

 private:
  void Add(const std::vector<CoreRow>& data, size_t question, const RequestEncoder& encoder) {
    std::string before;
    if (shots_ > 0) {
      PythonRandom random(static_cast<uint32_t>(1234 + question));
      for (const int64_t drawn : random.Sample(std::ssize(data) - 1, shots_)) {
        // Drawn among all but the question.
        const CoreRow& row =
            data[static_cast<size_t>(drawn) + (static_cast<size_t>(drawn) >= question)];
        before += StrCat(row.begin(row.gold), task_.delimiter, row.end(row.gold), "\n\n");
      }
    }
    const CoreRow& row = data[question];
    std::vector<std::vector<int32_t>> sequences;
    for (size_t i = 0; i < std::max(row.begins.size(), row.ends.size()); ++i) {
      sequences.push_back(encoder.Plain(StrCat(before, row.begin(i), task_.delimiter, row.end(i))));
    }
    first_.push_back(requests_.size());
    gold_.push_back(row.gold);
    std::vector<std::vector<int32_t>> compared = sequences;
    if (task_.kind == kContinue) {
      const std::string without = StrCat(before, row.begin(0), task_.delimiter);
      compared.push_back(encoder.Plain(Strip(without)));
    }
    const int64_t common = CommonPrefix(compared, task_.kind == kSchema);
    for (std::vector<int32_t>& ids : sequences) {
      const int64_t begin = task_.kind == kSchema ? std::ssize(ids) - common : common;
      Push(std::move(ids), begin, encoder);
    }
  }

  void Push(std::vector<int32_t> ids, int64_t begin, const RequestEncoder& encoder) {
    try {
      requests_.push_back(encoder.Range(std::move(ids), begin));
    } catch (const InputError& e) {
      throw InputError(StrCat(places_[gold_.size() - 1], ": ", e.what()));
    }
    requests_.back().wants_greedy = task_.kind == kContinue;
    if (task_.kind != kContinue || requests_.back().scored > 0) return;
    throw InputError(StrCat(places_[gold_.size() - 1], ": \"continuation\" adds no token"));
  }

  const CoreTask& task_;
  const int64_t shots_;
  std::vector<std::string> places_;
  std::vector<size_t> first_, gold_;  // of each question: its first request; which option is right
  std::vector<ScoreRequest> requests_;
};

class CoreTaskList : public EvalTask {
 public:
  CoreTaskList(std::string_view one, const RequestEncoder& encoder, const TaskOptions& options) {
    for (const CoreTask& task : kCore) {
      if (one.empty() || one == task.name) tasks_.emplace_back(task, encoder, options);
    }
  }

  std::vector<TaskResult> Run(Gpt& model, const ScoreOptions& options) const override {
    std::vector<TaskResult> results;
    std::vector<double> centered, errors;
    int64_t rows = 0;
    for (const OneCoreTask& task : tasks_) {
      results.push_back(task.Run(model, options));
      centered.push_back(results.back().figures[1].value);
      errors.push_back(*results.back().figures[1].error);
      rows += results.back().rows;
    }
    if (tasks_.size() == 1) return results;
    for (TaskResult& result : results) result.part_of = "core";
    const Figure mean{
        .metric = "centered", .value = Mean(centered), .error = UnweightedError(errors)};
    results.insert(results.begin(), {"core", 0, rows, {mean}});
    return results;
  }

 private:
  std::vector<OneCoreTask> tasks_;
};

}  // namespace

std::span<const CoreTask> CoreTasks() { return kCore; }

std::unique_ptr<EvalTask> MakeCoreTask(std::string_view one, const RequestEncoder& encoder,
                                       const TaskOptions& options) {
  return std::make_unique<CoreTaskList>(one, encoder, options);
}

}  // namespace lockstep::models
