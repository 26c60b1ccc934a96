#include "models/report/report.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>

#include "core/io/file.h"
#include "dist/pipeline/schedule.h"
#include "models/report/run_log.h"
#include "models/report/schedule_plot.h"
#include "models/report/svg_plot.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;
using testing::Not;

StepMetrics At(int64_t step) {
  const auto s = static_cast<double>(step);
  StepMetrics m;
  m.step = step;
  m.loss = 1.5 + 2.7 * std::exp(-s / 40) + 0.1 * std::sin(s);
  m.grad_norm = 0.5 + 0.3 * std::cos(s);
  m.lr = 1e-3;
  m.times = {.data_ms = 0.2, .forward_ms = 3.1, .backward_ms = 6.3, .update_ms = 0.9};
  m.ms = m.times.total();
  m.tokens_per_second = 768 / m.ms * 1e3;
  m.memory_bytes = 9 << 20;
  if (step % 20 == 0) {
    m.val_loss = 1.55 + 2.7 * std::exp(-s / 40);
    m.val_sources = {{"web/*.bin", *m.val_loss + 0.2, 1.25}, {"code & more", *m.val_loss - 0.2}};
    m.pauses.eval_ms = 15;
  }
  return m;
}

RunHistory History(int64_t steps) {
  RunHistory h(/*clip=*/1);
  for (int64_t s = 1; s <= steps; ++s) h.Add(At(s));
  return h;
}

ReportInput Input() {
  ReportInput in;
  in.name = "out";
  in.unix_time = 1.8e9;
  in.plan = {.steps = 200, .tokens_per_step = 768, .vocab_size = 65, .planned_memory = 9 << 20};
  in.facts = {{"model", "GPT"}, {"data", "the embedded corpus"}};
  in.samples = {{100, "To be", " or not"}, {200, "KING:\n", "What & who"}};
  return in;
}

// Checks that every tag is closed by its name, every attribute quoted, and every & starts an
// entity. Returns what is wrong, or "".
std::string Malformed(const std::string& html) {
  static const std::set<std::string> kVoid = {"meta", "br", "hr", "img", "input", "link"};
  std::vector<std::string> open;
  for (size_t i = 0; i < html.size();) {
    if (html[i] == '&') {
      const size_t end = html.find(';', i);
      if (end == std::string::npos || end - i > 6) return "& at " + html.substr(i, 40);
    }
    if (html[i] != '<') {
      if (html[i] == '>') return "> at " + html.substr(i, 40);
      ++i;
      continue;
    }
    if (html.compare(i, 9, "<!DOCTYPE") == 0) {
      i = html.find('>', i) + 1;
      continue;
    }
    const bool closes = html[i + 1] == '/';
    size_t at = i + (closes ? 2 : 1);
    std::string name;
    while (std::isalnum(static_cast<unsigned char>(html[at]))) name += html[at++];
    if (name.empty()) return "< at " + html.substr(i, 40);
    if (closes) {
      if (html[at] != '>') return "closing tag " + html.substr(i, 40);
      if (open.empty() || open.back() != name) return "</" + name + "> closes nothing";
      open.pop_back();
      i = at + 1;
      continue;
    }
    std::set<std::string> attributes;
    bool self_closed = false;
    while (html[at] != '>') {
      if (html[at] == '/' && html[at + 1] == '>') {
        self_closed = true;
        ++at;
        continue;
      }
      if (html[at] != ' ') return "tag " + html.substr(i, 60);
      const size_t equals = html.find('=', at);
      const std::string attribute = html.substr(at + 1, equals - at - 1);
      if (attribute.find_first_not_of("abcdefghijklmnopqrstuvwxyzBL-12") != std::string::npos)
        return "attribute " + html.substr(at, 60);
      if (!attributes.insert(attribute).second) return "twice " + attribute;
      if (html[equals + 1] != '"') return "unquoted " + html.substr(at, 60);
      at = html.find('"', equals + 2) + 1;
    }
    i = at + 1;
    if (self_closed || kVoid.contains(name)) continue;
    if (name == "script" || name == "style") {
      i = html.find("</" + name + ">", i);
      if (i == std::string::npos) return name + " does not end";
    }
    open.push_back(name);
  }
  return open.empty() ? "" : "<" + open.back() + "> does not end";
}

TEST(Malformed, FindsWhatItIsFor) {
  EXPECT_EQ(Malformed("<!DOCTYPE html>\n<p a=\"1\">x &amp; y<meta b=\"c\"><i/></p>"), "");
  for (const char* bad :
       {"<p>", "</p>", "<p><b></p></b>", "<p a=1></p>", "a < b", "<p a=\"1\" a=\"2\"></p>",
        "x & y and more text", "<script>x", "a > b", "<p \"></p>"})
    EXPECT_NE(Malformed(bad), "") << bad;
}

TEST(Report, IsWellFormedAtAnyLength) {
  for (const int64_t steps : {0, 1, 2, 19, 20, 21, 200, 5000}) {
    const std::string html = RenderReport(History(steps), Input());
    EXPECT_EQ(Malformed(html), "") << steps;
    EXPECT_THAT(html, Not(HasSubstr("nan"))) << steps;
    EXPECT_LT(html.size(), 600'000u) << steps;
  }
  RunHistory only_eval;
  StepMetrics before;
  before.val_loss = 4.5;
  only_eval.Add(before);
  EXPECT_EQ(Malformed(RenderReport(only_eval, Input())), "");
}

TEST(Report, IsWellFormedWhereNumbersAreNot) {
  RunHistory h(1);
  for (int64_t s = 1; s <= 100; ++s) {
    StepMetrics m = At(s);
    if (s > 50) m.loss = m.grad_norm = NAN;
    if (m.val_loss && s > 50) m.val_loss = INFINITY;
    if (s % 7 == 0) m.grad_norm = 0;
    h.Add(m);
  }
  const std::string html = RenderReport(h, Input());
  EXPECT_EQ(Malformed(html), "");
  EXPECT_THAT(html, HasSubstr("the loss is no longer a number"));
}

TEST(Report, RefersToNothingOutsideOfItself) {
  const std::string html = RenderReport(History(200), Input());
  for (const char* word : {"http:", "https:", "//", "src=", "href=", "url(", "@import", "<link",
                           "<iframe", "fetch(", "XMLHttpRequest", "import("}) {
    // Only comments of the script may start with //.
    std::string rest = html;
    for (size_t at; (at = rest.find("\n  // ")) != std::string::npos;)
      rest.erase(at, rest.find('\n', at + 1) - at);
    EXPECT_THAT(rest, Not(HasSubstr(word))) << word;
  }
}

TEST(Report, EscapesAllText) {
  const std::string evil = "</pre></script><script>alert('x')</script>&\"<img src=x>\x01\xff";
  ReportInput in = Input();
  in.name = evil;
  in.facts = {{evil, evil}};
  in.samples = {{1, evil, evil}, {2, evil, evil}};
  in.config.out_dir = evil.substr(0, evil.size() - 2);
  in.config.train.sample_prompt = "<b>&";
  const std::string html = RenderReport(History(100), in);
  EXPECT_EQ(Malformed(html), "");
  EXPECT_THAT(html, Not(HasSubstr("alert('x')")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
  EXPECT_EQ(EscapeHtml("a<b>&\"'\n\t\x02\xc3\xa9\xc3"),
            "a&lt;b&gt;&amp;&quot;&#39;\n\t\xEF\xBF\xBD\xc3\xa9\xEF\xBF\xBD");
}

TEST(Report, AnswersANewcomersQuestions) {
  ReportInput in = Input();
  const std::string running = RenderReport(History(100), in);
  EXPECT_THAT(running, testing::AllOf(HasSubstr("Healthy: still learning"), HasSubstr(">running<"),
                                      HasSubstr("Step 100 of 200"), HasSubstr("left</div>"),
                                      HasSubstr("http-equiv=\"refresh\"")));
  in.plan.finished = true;
  const std::string html = RenderReport(History(200), in);
  EXPECT_THAT(html, testing::AllOf(HasSubstr(">finished<"), HasSubstr("Step 200 of 200"),
                                   Not(HasSubstr("refresh")), HasSubstr("guessing among 65 tokens"),
                                   HasSubstr("<mark>KING:\n</mark>What &amp; who"),
                                   HasSubstr("after step 100"), HasSubstr("weight_decay")));
  for (const char* title : {"Loss", "Gradient norm", "Learning rate", "Throughput", "Memory",
                            "Time of a step", "Where the time went"})
    EXPECT_THAT(html, HasSubstr(std::string("<h3>") + title + "</h3>"));
  // 200 steps of 10.5 ms and 10 evaluations of 15 ms: shares add up.
  EXPECT_THAT(html,
              testing::AllOf(HasSubstr("1.26 s</td><td>56.0%"), HasSubstr("150 ms</td><td>6.7%")));
}

TEST(Report, DrawsTheLossOfEachSource) {
  const std::string page = RenderReport(History(100), Input());
  EXPECT_THAT(page, HasSubstr("Validation loss of sources"));
  EXPECT_THAT(page, HasSubstr("</b>web/*.bin</span>"));
  EXPECT_THAT(page, HasSubstr("</b>code &amp; more</span>"));
  EXPECT_THAT(RenderReport(History(10), Input()), Not(HasSubstr("Validation loss of sources")));
}

TEST(Report, OptionsThatDifferFromTheDefaultsStandOut) {
  ReportInput in = Input();
  in.config.optim.lr = 0.5;
  EXPECT_THAT(RenderReport(History(30), in), HasSubstr("<td class=\"set changed\">0.5</td>"));
  EXPECT_THAT(RenderReport(History(30), Input()), Not(HasSubstr("set changed")));
}

class Log : public testing::Test {
 protected:
  Log()
      : folder_(JoinPath(testing::TempDir(),
                         testing::UnitTest::GetInstance()->current_test_info()->name())) {
    RemoveTree(folder_);
    MakeDirectories(folder_);
  }
  std::string Report() const { return ReadFile(JoinPath(folder_, "report.html")); }
  const std::string folder_;
};

TEST_F(Log, AFailedRunSaysWhy) {
  RunLog log(folder_, Input(), 1, nullptr, [](const std::string& text) { ADD_FAILURE() << text; });
  for (int64_t s = 1; s <= 50; ++s) log.Step(At(s));
  log.WriteReport();
  EXPECT_THAT(Report(), testing::AllOf(HasSubstr(">running<"), HasSubstr("http-equiv")));
  log.Fail("the loss is <nan>");
  EXPECT_THAT(Report(), testing::AllOf(HasSubstr(">failed<"), HasSubstr("Failed after step 50"),
                                       HasSubstr("the loss is &lt;nan&gt;"),
                                       Not(HasSubstr("http-equiv=\"refresh"))));
}

// Killed at step 50 with a checkpoint of step 40, then resumed.
TEST_F(Log, AResumedRunShowsTheWholeHistory) {
  const auto no_warning = [](const std::string& text) { ADD_FAILURE() << text; };
  {
    RunLog log(folder_, Input(), 1, nullptr, no_warning);
    for (int64_t s = 1; s <= 50; ++s) log.Step(At(s));
    log.Sample({40, "", "early words"});
    log.Sample({50, "", "lost words"});
  }
  RunLog log(folder_, Input(), 41, nullptr, no_warning);
  for (int64_t s = 41; s <= 60; ++s) log.Step(At(s));
  log.Timed(&PauseTimes::eval_ms, [] {});
  log.Finish(/*interrupted=*/true);
  const std::string html = Report();
  EXPECT_THAT(html, testing::AllOf(HasSubstr(">interrupted<"), HasSubstr("Step 60 of 200"),
                                   HasSubstr("early words"), Not(HasSubstr("lost words"))));
  std::string steps = "\"x\":[1.0,2.0,3.0";
  EXPECT_THAT(html, HasSubstr(steps));
  EXPECT_THAT(html, HasSubstr("39.0,40.0,41.0,42.0"));
  EXPECT_THAT(html, Not(HasSubstr("50.0,50.0")));
}

TEST_F(Log, AFailingDiskIsReportedOnceAndStopsNothing) {
  std::vector<std::string> warnings;
  RunLog log(folder_, Input(), 1, nullptr, [&](const std::string& w) { warnings.push_back(w); });
  RemoveTree(folder_);
  WriteFileAtomically(folder_, "no folder any more");
  for (int64_t s = 1; s <= 30; ++s) {
    log.Step(At(s));
    log.Sample({s, "", "text"});
    log.WriteReport();
  }
  log.Finish(false);
  EXPECT_THAT(warnings,
              testing::UnorderedElementsAre(HasSubstr("metrics are not recorded"),
                                            HasSubstr("samples are not recorded"),
                                            HasSubstr("no report"), HasSubstr("no report")));
  // At the end there is none, either.
  for (size_t i = 0; i < warnings.size(); ++i) {
    EXPECT_EQ(warnings[i].find("training continues") != std::string::npos, i + 1 < warnings.size());
  }
  RemoveTree(folder_);
}

// A pause between two lines counts for the second.
TEST_F(Log, CountsPauses) {
  RunLog log(folder_, Input(), 1, nullptr, [](const std::string&) {});
  log.Timed(&PauseTimes::eval_ms,
            [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  log.Timed(&PauseTimes::sample_ms, [] { return 1; });
  StepMetrics m = At(1);
  m.pauses = {};
  log.Step(m);
  log.Step(m);
  std::istringstream lines(ReadFile(JoinPath(folder_, "metrics.jsonl")));
  std::string line;
  std::getline(lines, line);
  const auto first = ParseMetrics(line);
  ASSERT_TRUE(first.has_value());
  EXPECT_GE(first->pauses.eval_ms, 3);
  EXPECT_GT(first->pauses.sample_ms, 0);
  EXPECT_EQ(first->pauses.checkpoint_ms, 0);
  std::getline(lines, line);
  EXPECT_EQ(ParseMetrics(line)->pauses.total(), 0);
}

// A step's pipeline is drawn: a box for each action, under the rank's name.
TEST(Report, DrawsThePipelinesSchedule) {
  using dist::PipelineKind;
  for (const PipelineKind kind : {PipelineKind::k1F1B, PipelineKind::kInterleaved,
                                  PipelineKind::kZeroBubbleH1, PipelineKind::kZeroBubbleV}) {
    ReportInput in = Input();
    EXPECT_EQ(RenderReport(History(20), in).find("<h2>Pipeline</h2>"), std::string::npos);
    in.config.parallel.schedule = Name(kind);
    in.pipeline = AddTransfers(dist::MakeSchedule(kind, 4, 8));
    const std::string page = RenderReport(History(20), in);
    EXPECT_EQ(Malformed(page), "");
    EXPECT_NE(page.find(StrCat("<h2>Pipeline</h2><span class=\"note\">", Name(kind))),
              std::string::npos);
    size_t boxes = 0, actions = 0;
    for (size_t at = 0; (at = page.find(" of micro-batch ", at)) != std::string::npos; ++at)
      ++boxes;
    for (const auto& of_rank : dist::MakeSchedule(kind, 4, 8).actions) actions += of_rank.size();
    EXPECT_EQ(boxes, actions);
    EXPECT_NE(page.find(">rank 3</text>"), std::string::npos);
  }
  EXPECT_EQ(DescribeSchedule(dist::MakeSchedule(PipelineKind::k1F1B, 4, 8)),
            "4 ranks, 8 micro-batches, 1 stage per rank: ranks idle for 27% of a step, at best");
  const std::string large = SvgSchedule(dist::MakeSchedule(PipelineKind::k1F1B, 64, 64));
  EXPECT_NE(large.find("and 33 more ranks"), std::string::npos);
  EXPECT_LT(large.size(), 2'000'000u);
}

}  // namespace
}  // namespace lockstep::models
