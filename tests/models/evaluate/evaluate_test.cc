// Rules of requests, ranks, and what is refused.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "dist/groups/agreement.h"
#include "models/evaluate/eval_task.h"
#include "models/evaluate/python_text.h"
#include "models/evaluate/statistics.h"
#include "models/evaluate/task_results.h"
#include "tests/dist/in_process.h"
#include "tests/message_of.h"
#include "tests/models/evaluate/golden.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using test::kEvals;
using test::TinyEncoder;
using test::TinyModel;
using test::TinyTokenizer;
using testing::AllOf;
using testing::HasSubstr;

using Ids = std::vector<int32_t>;

template <class F>
std::string ErrorOf(const F& f) {
  return test::MessageOf<InputError>(f);
}

Ids Encoded(const std::string& text) { return TinyTokenizer("").Encode(text); }

// ---- Requests

TEST(RequestEncoder, SpacesMoveToTheContinuation) {
  const RequestEncoder encoder = TinyEncoder("");
  const ScoreRequest moved = encoder.Pair("The water ", "is cold");
  EXPECT_EQ(moved.ids, Encoded("The water is cold"));
  EXPECT_EQ(moved.scored, std::ssize(moved.ids) - std::ssize(Encoded("The water")));
  // Encoded apart, they would be other tokens.
  Ids apart = Encoded("The water ");
  for (const int32_t id : Encoded("is cold")) apart.push_back(id);
  EXPECT_NE(moved.ids, apart);
}

TEST(RequestEncoder, TheBeginningIsCutOff) {
  const std::string context = "one two three four five six", end = " seven";
  const Ids all = Encoded(context + end);
  const ScoreRequest cut = TinyEncoder("", 8).Pair(context, end);
  EXPECT_EQ(cut.ids, Ids(all.end() - 9, all.end()));  // of which the model reads 8
  EXPECT_EQ(cut.scored, std::ssize(all) - std::ssize(Encoded(context)));
}

TEST(RequestEncoder, EveryRequestBeginsWithOneBos) {
  const RequestEncoder bos = TinyEncoder("bos");
  const auto count = [](const Ids& ids) { return std::ranges::count(ids, 1); };
  for (const Ids& ids : {bos.Pair("The water", " is").ids, bos.Pair("", "Water").ids,
                         bos.Pair("<s>The water", " is").ids, bos.Pair("", "<s>Water").ids,
                         bos.Rolling("The water is cold")[0].ids, bos.Rolling("<s>Water")[0].ids,
                         bos.Prompt("The water", 10), bos.Plain("The water")}) {
    EXPECT_EQ(ids[0], 1);
    EXPECT_EQ(count(ids), 1);
  }
  EXPECT_EQ(bos.Pair("", "Water").scored, std::ssize(Encoded("Water")));
  // GPT-2's tokenizer puts nothing before a text that has a context.
  EXPECT_EQ(TinyEncoder("").Pair("The water", " is").ids, Encoded("The water is"));
  EXPECT_EQ(TinyEncoder("").Pair("", "Water").ids[0], 0);
}

TEST(RequestEncoder, WindowsScoreEachTokenOnce) {
  const std::string text = ReadFile(kEvals + "/text.txt");
  const Ids all = Encoded(text);
  for (const int64_t block : {1, 7, 64, 100000}) {
    int64_t scored = 0;
    Ids joined;
    for (const ScoreRequest& window : TinyEncoder("", block).Rolling(text)) {
      EXPECT_LE(std::ssize(window.ids), block + 1);
      EXPECT_LT(window.scored, std::ssize(window.ids));
      joined.insert(joined.end(), window.ids.end() - window.scored, window.ids.end());
      scored += window.scored;
    }
    EXPECT_EQ(scored, std::ssize(all));
    EXPECT_EQ(joined, all);
  }
}

TEST(RequestEncoder, RefusesWhatCannotBeScored) {
  const RequestEncoder encoder = TinyEncoder("", 8);
  EXPECT_THAT(ErrorOf([&] { encoder.Pair("The water", ""); }), HasSubstr("is 0 tokens"));
  EXPECT_THAT(ErrorOf([&] { encoder.Pair("a", std::string(400, '#')); }),
              HasSubstr("must be 1 to 8"));
  EXPECT_THAT(ErrorOf([&] { RequestEncoder(TinyTokenizer(""), 8, 100).Pair("a", " water"); }),
              HasSubstr("not in the model's vocabulary of 100"));
  EXPECT_THAT(ErrorOf([&] { encoder.Prompt("a", 256); }), HasSubstr("leaves no room"));
}

TEST(PythonText, IsPythons) {
  EXPECT_EQ(Capitalize("éMILE GOES to Paris"), "Émile goes to paris");
  EXPECT_EQ(Strip("\xc2\xa0 a b \n"), "a b");
  EXPECT_EQ(StripRight(" a\xe3\x80\x80"), " a");
  EXPECT_EQ(CountWords("two  words"), 2);
  EXPECT_EQ(CountWords(" two words\n"), 4);
  EXPECT_EQ(Replace("a  b   c", "  ", " "), "a b  c");
}

// ---- Scores

std::vector<ScoreRequest> SomeRequests() {
  const RequestEncoder encoder = TinyEncoder("");
  std::vector<ScoreRequest> requests;
  for (const char* const context :
       {"Question: What falls from clouds?\nAnswer:", "A", "The water"}) {
    for (const char* const end : {" rain", " a", " is cold, and the ice is water", " b"}) {
      requests.push_back(encoder.Pair(context, end));
      requests.back().wants_greedy = true;
    }
  }
  return requests;
}

// Against all logits at once, in f64.
TEST(ScoreRequests, AreSumsOfLogProbabilities) {
  const auto model = TinyModel();
  const std::vector<ScoreRequest> requests = SomeRequests();
  const std::vector<Score> scores = ScoreRequests(*model, requests, {.batch_size = 5});
  const NoGrad no_grad;
  for (size_t r = 0; r < requests.size(); ++r) {
    const Ids& ids = requests[r].ids;
    const int64_t n = std::ssize(ids) - 1;
    const Tensor logits = (*model)(Tensor::FromVector(Ids(ids.begin(), ids.end() - 1), {1, n}));
    const std::vector<float> values = logits.ToVector<float>();
    double sum = 0;
    bool greedy = true;
    for (int64_t t = n - requests[r].scored; t < n; ++t) {
      const float* row = values.data() + t * 384;
      double all = 0;
      for (int64_t v = 0; v < 384; ++v) all += std::exp(static_cast<double>(row[v]));
      const int32_t target = ids[static_cast<size_t>(t) + 1];
      sum += row[target] - std::log(all);
      greedy &= std::max_element(row, row + 384) - row == target;
    }
    EXPECT_NEAR(scores[r].log_probability, sum, 1e-5 * std::abs(sum));
    EXPECT_EQ(scores[r].greedy, greedy);
  }
}

// Products of few rows are summed in another order.
void ExpectNear(const std::vector<Score>& a, const std::vector<Score>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i].log_probability, b[i].log_probability, 1e-5 * std::abs(a[i].log_probability));
    EXPECT_EQ(a[i].greedy, b[i].greedy);
  }
}

TEST(ScoreRequests, DoNotDependOnBatches) {
  const auto model = TinyModel();
  const std::vector<ScoreRequest> requests = SomeRequests();
  const std::vector<Score> one = ScoreRequests(*model, requests, {.batch_size = 1});
  for (const int64_t batch : {2, 7, 100}) {
    ExpectNear(one, ScoreRequests(*model, requests, {.batch_size = batch}));
  }
}

Evaluators Among(dist::ProcessGroup& group) {
  return {.count = group.size(), .own = group.rank(), .sum = [&group](auto* values) {
            const auto all = dist::GatherValues(group, std::span<const double>(*values));
            values->assign(values->size(), 0);
            for (const auto& of_rank : all) {
              for (size_t i = 0; i < values->size(); ++i) (*values)[i] += of_rank[i];
            }
          }};
}

std::string AllFigures(Gpt& model, const ScoreOptions& options) {
  const RequestEncoder encoder = TinyEncoder("");
  std::vector<TaskResult> results;
  for (const char* const name : {"hellaswag", "lambada_openai", "mmlu", "gsm8k", "core_winograd"}) {
    const auto task = MakeTask(name, encoder, {.folder = kEvals, .shots = 0, .all_errors = false});
    for (TaskResult& r : task->Run(model, options)) results.push_back(std::move(r));
  }
  for (TaskResult& r : MakeTextTask({kEvals + "/text.txt"}, encoder)->Run(model, options)) {
    results.push_back(std::move(r));
  }
  return ToJson(results);
}

TEST(ScoreRequests, AnyRanksGiveTheSameBits) {
  const auto one = TinyModel();
  const std::string figures = AllFigures(*one, {});
  for (const int ranks : {2, 3}) {
    for (const bool meet : {false, true}) {
      dist::RunInProcess(ranks, [&](dist::ProcessGroup& group) {
        Evaluators evaluators = Among(group);
        evaluators.meet_in_forward = meet;
        EXPECT_EQ(AllFigures(*TinyModel(), {.evaluators = evaluators}), figures);
      });
    }
  }
}

// The rows of JSONL are texts of their own, and no braces are scored.
TEST(TextTask, RowsOfJsonlAreTexts) {
  const test::TempFolder folder("texts");
  WriteFileAtomically(folder.Path("a.txt"), "ab ba\n");
  WriteFileAtomically(folder.Path("b.txt"), "ba");
  WriteFileAtomically(folder.Path("rows.jsonl"),
                      "{\"text\": \"ab ba\\n\"}\n\n{\"id\": 2, \"text\": \"ba\"}\n");
  const RequestEncoder encoder = TinyEncoder("");
  const auto model = TinyModel();
  const auto figures = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(folder.Path(name));
    return MakeTextTask(paths, encoder)->Run(*model, {})[0];
  };
  const TaskResult rows = figures({"rows.jsonl"}), files = figures({"a.txt", "b.txt"});
  EXPECT_EQ(rows.rows, 2);
  for (size_t i = 0; i < rows.figures.size(); ++i) {
    EXPECT_DOUBLE_EQ(rows.figures[i].value, files.figures[i].value) << rows.figures[i].metric;
  }
  WriteFileAtomically(folder.Path("rows"), "{\"text\": \"ab\"}\n");
  EXPECT_THAT(test::MessageOf<Error>([&] { figures({"rows"}); }), HasSubstr(".jsonl"));
}

TEST(ScoreRequests, StopWhenAsked) {
  const auto model = TinyModel();
  EXPECT_THROW(ScoreRequests(*model, SomeRequests(), {.stop = [] { return true; }}),
               EvaluationStopped);
}

// ---- Figures

TEST(Statistics, AreTheHarness) {
  const std::vector<double> values = {1, 0, 0, 1};
  EXPECT_DOUBLE_EQ(Mean(values), 0.5);
  EXPECT_DOUBLE_EQ(MeanError(values), std::sqrt(1.0 / 3) / 2);
  EXPECT_TRUE(std::isnan(MeanError(std::vector<double>{1})));
  const std::vector<double> errors = {0.1, 0.3};
  const std::vector<int64_t> sizes = {10, 5};
  EXPECT_DOUBLE_EQ(PooledError(errors, sizes), std::sqrt((9 * 0.01 * 10 + 4 * 0.09 * 5) / 13 / 15));
  EXPECT_DOUBLE_EQ(UnweightedError(errors), std::sqrt(0.1) / 2);
}

TEST(TaskResults, AreATableAndJson) {
  const std::vector<TaskResult> results = {
      {"piqa", 2, 3, {{.metric = "acc", .value = 2.0 / 3, .error = 1.0 / 3}}},
      {"one", 0, 1, {{.metric = "acc", .value = 1, .error = NAN}}}};
  EXPECT_EQ(Table(results),
            "| task | n-shot | rows | filter | metric |  value | stderr |\n"
            "|------|-------:|-----:|--------|--------|-------:|-------:|\n"
            "| piqa |      2 |    3 | none   | acc    | 0.6667 | 0.3333 |\n"
            "| one  |      0 |    1 | none   | acc    | 1.0000 |    nan |\n");
  const auto json = Json::parse(ToJson(results));
  EXPECT_DOUBLE_EQ(json["results"]["piqa"]["acc_stderr,none"].get<double>(), 1.0 / 3);
  EXPECT_TRUE(json["results"]["one"]["acc_stderr,none"].is_null());
  EXPECT_EQ(json["n-samples"]["piqa"], 3);
}

// ---- llm.c's file

TEST(LlmcTask, IsScoredByTokensOfBothWays) {
  const test::TempFolder folder("llmc");
  std::string file(1024, '\0');
  const auto put32 = [&](size_t at, int32_t value) { std::memcpy(&file[at], &value, 4); };
  put32(0, 20240522);
  put32(4, 1);
  put32(8, 1);
  const auto put16 = [&](int value) {
    file += static_cast<char>(value & 255);
    file += static_cast<char>(value >> 8);
  };
  const Ids context = {40, 41, 42};
  const std::vector<Ids> endings = {{50}, {51, 52, 53, 54}, {55, 56}};
  for (const int value : {65535, 0, 0, 1, 3}) put16(value);
  const auto put = [&](const Ids& ids) {
    put16(static_cast<int>(ids.size()));
    for (const int32_t id : ids) put16(id);
  };
  put(context);
  for (const Ids& ending : endings) put(ending);
  WriteFileAtomically(folder.Path("hellaswag_val.bin"), file);
  const auto model = TinyModel();
  std::vector<ScoreRequest> requests;
  for (const Ids& ending : endings) {
    Ids ids = context;
    ids.insert(ids.end(), ending.begin(), ending.end());
    requests.push_back({ids, std::ssize(ending)});
  }
  const std::vector<Score> scores = ScoreRequests(*model, requests, {});
  const auto mean = [&](size_t i) {
    return scores[i].log_probability / static_cast<double>(endings[i].size());
  };
  const auto p = [&](size_t i) { return scores[i].log_probability; };
  const RequestEncoder encoder = TinyEncoder("");
  const auto figures =
      MakeTask("hellaswag_llmc", encoder, {.folder = folder.path()})->Run(*model, {})[0].figures;
  EXPECT_EQ(figures[0].value, p(1) > p(0) && p(1) > p(2));
  EXPECT_EQ(figures[1].value, mean(1) > mean(0) && mean(1) > mean(2));
  WriteFileAtomically(folder.Path("hellaswag_val.bin"), file.substr(0, file.size() - 2));
  const auto make = [&] { MakeTask("hellaswag_llmc", encoder, {.folder = folder.path()}); };
  EXPECT_THAT(ErrorOf(make), HasSubstr("ends within an example"));
  WriteFileAtomically(folder.Path("hellaswag_val.bin"), "nonsense");
  EXPECT_THAT(ErrorOf(make), HasSubstr("not a file of llm.c's evaluations"));
}

// ---- What is refused

TEST(EvalTask, SaysWhatIsWrong) {
  const test::TempFolder folder("evals");
  const RequestEncoder encoder = TinyEncoder("");
  const auto error = [&](const std::string& task, const std::string& file, const std::string& text,
                         int64_t shots = 0) {
    const std::string path = folder.Path(file);
    MakeDirectories(path.substr(0, path.rfind('/')));
    if (text != "missing") WriteFileAtomically(path, text);
    return ErrorOf([&] { MakeTask(task, encoder, {.folder = folder.path(), .shots = shots}); });
  };
  EXPECT_THAT(ErrorOf([] { ParseTasks("hellaswag,helaswag"); }),
              AllOf(HasSubstr("no task helaswag"), HasSubstr("did you mean hellaswag?")));
  EXPECT_EQ(ParseTasks(" piqa, core_copa,"), (std::vector<std::string>{"piqa", "core_copa"}));
  EXPECT_THAT(error("piqa", "piqa/validation.jsonl", "missing"),
              AllOf(HasSubstr("there is no "), HasSubstr("load_dataset('baber/piqa', 'default', "
                                                         "split='validation').to_json(")));
  EXPECT_THAT(error("piqa", "piqa/validation.jsonl", "\n"), HasSubstr("has no rows"));
  EXPECT_THAT(error("piqa", "piqa/validation.jsonl", "{\"goal\": \"x\", \"sol1\": \"a\"}\n"),
              AllOf(HasSubstr("validation.jsonl:1: \"sol2\" is missing"), HasSubstr("goal, sol1")));
  EXPECT_THAT(error("piqa", "piqa/validation.jsonl", "\n[1]\n"),
              HasSubstr("validation.jsonl:2: a row must be a JSON object"));
  const std::string row = R"({"goal": "x", "sol1": "a", "sol2": "b", "label": )";
  EXPECT_THAT(error("piqa", "piqa/validation.jsonl", row + "2}\n"),
              HasSubstr("\"label\" is 2, and must be a number from 0 to 1"));
  EXPECT_THAT(error("piqa", "piqa/validation.jsonl", row), HasSubstr("not valid JSON"));
  WriteFileAtomically(folder.Path("piqa/train.jsonl"), row + "0}\n");
  EXPECT_THAT(error("piqa", "piqa/validation.jsonl", row + "1}\n", 1),
              HasSubstr("are more than the 1 rows of"));
  EXPECT_THAT(error("arc_easy", "arc_easy/test.jsonl",
                    R"({"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, )"
                    R"("answerKey": "C"})"),
              HasSubstr("\"answerKey\" C must be one of the labels"));
  EXPECT_THAT(error("winogrande", "winogrande/validation.jsonl",
                    R"({"sentence": "no", "option1": "a", "option2": "b", "answer": "1"})"),
              HasSubstr("has no _"));
  EXPECT_THAT(test::MessageOf<Error>([&] { MakeTextTask({folder.Path("none.txt")}, encoder); }),
              HasSubstr("none.txt"));
}

}  // namespace
}  // namespace lockstep::models
