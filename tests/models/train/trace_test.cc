#include "models/report/trace.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/gpt/gpt.h"
#include "models/train/step/trainer.h"
#include "optim/adamw.h"
#include "tests/gpu_test.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  try {
    ParseStepRange(text);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(StepRange, Parses) {
  EXPECT_FALSE(ParseStepRange("").has_value());
  EXPECT_EQ(ParseStepRange("3:7")->first, 3);
  EXPECT_EQ(ParseStepRange("3:7")->last, 7);
  EXPECT_EQ(ParseStepRange("1:1000")->last, 1000);
}

TEST(StepRange, ExplainsBadOnes) {
  EXPECT_EQ(ErrorOf("7"), "must be first:last, as in 7:7");
  for (const char* text : {"x", ":", "3:", ":3", "3:x", "3:4:5", "3-4", "1e3:2", " 3:4"})
    EXPECT_THAT(ErrorOf(text), HasSubstr("must be first:last, two steps")) << text;
  EXPECT_THAT(ErrorOf("0:3"), HasSubstr("counted from 1"));
  EXPECT_THAT(ErrorOf("-2:3"), HasSubstr("counted from 1"));
  EXPECT_EQ(ErrorOf("9:4"), "the last step is before the first: write 4:9");
  EXPECT_EQ(ErrorOf("5:1005"), "at most 1000 steps can be traced: write 5:1004");
  EXPECT_THAT(ErrorOf("1:9223372036854775807"), HasSubstr("at most 1000 steps"));
}

struct Span {
  std::string name, category;
  double begin, end;
  int64_t step;
  int thread;
};

std::vector<Span> Spans(const Json& trace) {
  std::vector<Span> spans;
  for (const auto& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    spans.push_back({e["name"], e["cat"], e["ts"], e["ts"].get<double>() + e["dur"].get<double>(),
                     e["args"]["step"], e["tid"]});
  }
  return spans;
}

// Trains a small GPT for 4 steps with a trace of steps 2 and 3.
Json TraceOfTraining(TraceRecorder& trace) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 200; ++i) ids.push_back(i * i % 13);
  const auto tokens = std::make_shared<data::MemoryTokens>(ids);
  Gpt model({.vocab_size = 13, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16});
  model.Materialize(kCpu, 4);
  optim::AdamW adamw(model.Parameters());
  data::Loader loader(tokens, data::Sampler(data::Order::kShuffled, 3, tokens->size(), 8),
                      {.batch_size = 4, .micro_batches = 2});
  TraceForward(model, trace);
  trace.NameThread("trainer");
  Trainer trainer(model, adamw, optim::LrSchedule({.lr = 1e-2, .decay_steps = 20}), loader,
                  {.micro_batches = 2, .trace = &trace});
  for (int i = 0; i < 4; ++i) {
    const StepMetrics m = trainer.Step();
    EXPECT_EQ(trace.active(), m.step == 2 || m.step == 3);
    EXPECT_EQ(trace.complete(), m.step == 4);
  }
  return Json::parse(trace.ToJson());
}

TEST(Trace, HasTheStepsPhasesModulesAndNodes) {
  TraceRecorder trace(testing::TempDir() + "/trace.json", {2, 3});
  const Json json = TraceOfTraining(trace);
  const std::vector<Span> spans = Spans(json);
  std::map<std::string, int> counts;
  for (const Span& s : spans) {
    ++counts[s.category + " " + s.name];
    EXPECT_TRUE(s.step == 2 || s.step == 3);
  }
  EXPECT_EQ(counts["step step"], 2);
  for (const char* phase : {"data", "forward", "backward"}) {
    EXPECT_EQ(counts[std::string("phase ") + phase], 4) << phase;  // 2 steps of 2 micro-steps
  }
  EXPECT_GE(counts["phase update"], 2);
  EXPECT_EQ(counts["forward model"], 4);
  EXPECT_EQ(counts["forward h.1.attn"], 4);
  EXPECT_EQ(counts["backward softmax_cross_entropy"], 4);
  EXPECT_EQ(counts["backward token_position_embedding"], 4);
  // Per block: c_attn, c_proj, c_fc, c_proj; and the head.
  EXPECT_EQ(counts["backward linear"], 4 * (4 * 2 + 1));
}

// Copies have tracks of their own, and so has what a GPU computes with what they bring.
TEST(Trace, HasTheCopiesOfOffload) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  constexpr int kLayers = 3;
  GptConfig config = SmallGpt(0.1);
  config.n_layer = kLayers;
  config.offload = {.activations = true, .weights = true};
  TraceRecorder trace(testing::TempDir() + "/trace_copies.json", {2, 2});
  const auto tokens = Tokens(200);
  Gpt model(config);
  model.Materialize(test::kGpu, 4);
  optim::AdamW adamw(model.Parameters(), {.offload = {.to_host = true}});
  data::Loader loader(tokens, Shuffled(*tokens), {.batch_size = 4});
  Trainer trainer(model, adamw, SmallSchedule(), loader, {.trace = &trace, .cuda_graphs = true});
  for (int i = 0; i < 3; ++i) trainer.Step();
  const auto json = Json::parse(trace.ToJson());
  std::map<int, std::string> tracks;
  for (const auto& e : json["traceEvents"]) {
    if (e["name"] == "thread_name") tracks[e["tid"]] = e["args"]["name"];
  }
  std::map<std::string, std::map<std::string, int>> counts;  // by track and the name's first word
  for (const Span& s : Spans(json)) {
    if (s.category != "copy" && s.category != "compute") continue;
    EXPECT_EQ(s.step, 2);
    ++counts[tracks[s.thread]][s.name.substr(0, s.name.find_first_of(",. "))];
  }
  using Counts = std::map<std::string, int>;
  // The last block's activations and weights stay until its backward.
  EXPECT_EQ(counts["copies to the GPU"],
            (Counts{{"h", 2 * kLayers - 1}, {"activations", kLayers - 1}, {"optimizer", 2}}));
  EXPECT_EQ(counts["copies to the host"], (Counts{{"activations", kLayers - 1}, {"optimizer", 2}}));
  EXPECT_EQ(counts["GPU"], (Counts{{"h", 2 * kLayers}, {"update", 2}}));
}

// Spans of a thread nest: of any two, one contains the other or they are disjoint.
TEST(Trace, SpansNest) {
  TraceRecorder trace(testing::TempDir() + "/trace_nest.json", {2, 3});
  const std::vector<Span> spans = Spans(TraceOfTraining(trace));
  constexpr double kTick = 0.0015;  // microseconds: times are written in nanoseconds
  for (const Span& a : spans) {
    for (const Span& b : spans) {
      const bool apart = a.end <= b.begin + kTick || b.end <= a.begin + kTick;
      const bool inside = (a.begin >= b.begin - kTick && a.end <= b.end + kTick) ||
                          (b.begin >= a.begin - kTick && b.end <= a.end + kTick);
      ASSERT_TRUE(apart || inside) << a.name << " and " << b.name;
    }
    if (a.category != "backward") continue;
    const bool in_phase = std::any_of(spans.begin(), spans.end(), [&](const Span& p) {
      return p.category == "phase" && p.name == "backward" && a.begin >= p.begin - kTick &&
             a.end <= p.end + kTick;
    });
    ASSERT_TRUE(in_phase) << a.name;
  }
}

TEST(Trace, ThreadsHaveNames) {
  TraceRecorder trace(testing::TempDir() + "/trace_threads.json", {1, 1});
  trace.NameThread("trainer");
  trace.BeginStep(1);
  { const TraceSpan span(&trace, "here", "test"); }
  std::thread other([&] {
    trace.NameThread("\"loader\"");
    const TraceSpan span(&trace, "there", "test");
  });
  other.join();
  const auto json = Json::parse(trace.ToJson());
  std::set<std::string> names;
  for (const auto& e : json["traceEvents"]) {
    if (e["name"] == "thread_name") names.insert(e["args"]["name"]);
  }
  EXPECT_EQ(names, (std::set<std::string>{"trainer", "\"loader\""}));
  const std::vector<Span> spans = Spans(json);
  EXPECT_NE(spans[0].thread, spans[1].thread);
}

TEST(Trace, ItsSizeIsBoundedAndDropsAreCounted) {
  TraceRecorder trace(testing::TempDir() + "/trace_full.json", {1, 1}, /*max_events=*/10);
  trace.BeginStep(1);
  for (int i = 0; i < 25; ++i) const TraceSpan span(&trace, "x", "test");
  const auto json = Json::parse(trace.ToJson());
  EXPECT_EQ(Spans(json).size(), 10u);
  EXPECT_EQ(json["otherData"]["dropped_events"], 15);
}

TEST(Trace, WritesItsFileOnce) {
  const std::string path = testing::TempDir() + "/trace_once.json";
  RemoveTree(path);
  TraceRecorder trace(path, {2, 2});
  trace.BeginStep(1);
  { const TraceSpan span(&trace, "outside", "test"); }
  EXPECT_FALSE(trace.Finish());  // nothing to write
  EXPECT_FALSE(PathExists(path));
  trace.BeginStep(2);
  { const TraceSpan span(&trace, "inside", "test"); }
  EXPECT_TRUE(trace.Finish());
  EXPECT_FALSE(trace.Finish());
  const std::vector<Span> spans = Spans(Json::parse(ReadFile(path)));
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].name, "inside");
}

}  // namespace
}  // namespace lockstep::models
