// The table of rules on plans, as the options, a run that is prepared, and the planner read it.
#include "models/options/plan_rules.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/train/run_checks.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Arguments = std::vector<std::string>;

// The error for options that these processes cannot train by together; 0: of the options alone.
std::string ErrorOnRanks(int64_t processes, Arguments arguments) {
  if (processes == 0) return ErrorOf(arguments);
  arguments.push_back("--model.vocab_size=96");
  ParsedRun run(arguments);
  return test::MessageOf<InputError>(
      [&] { PrepareShape(run.options, run.config, kCpu, processes); });
}

struct Broken {
  std::string rule;
  int64_t ranks;
  Arguments arguments;
  std::string says = "";  // a number, or what to type instead
};

const std::string kExperts = "--model.n_expert=4", kCp = "--parallel.cp=2", kEp = "--parallel.ep=4",
                  kTp = "--parallel.tp=2", kPp = "--parallel.pp=2", kFull = "--parallel.shard=full",
                  kCompress = "--dist.compress=bf16", kOrdered = "--dist.reduction=ordered",
                  kBf16 = "--train.precision=bf16", kBf16Grads = "--train.grad_dtype=bf16",
                  kWhole = "--parallel.reshard_after_forward=false", kDpo = "--train.objective=dpo",
                  kRank = "--lora.rank=2", kOuter = "--dist.outer_every=50",
                  kTime = "--train.time_budget=10m";

// Each rule at least once. (Rules on adapters need weights: RulesOfAdapters.)
const std::vector<Broken> kBroken = {
    {"virtual.tp", 0, {kTp, "--virtual.tp=6"}, "virtual.tp = 4"},
    {"virtual.tp", 0, {kTp, "--virtual.tp=3"}, "virtual.tp = 4"},
    {"virtual.cp", 0, {kCp, "--virtual.cp=6"}, "virtual.cp = 4"},
    {"ep is a power of two", 0, {"--parallel.ep=3"}, "parallel.ep = 2, 4 or 8"},
    {"ep fits cp", 0, {kEp, "--parallel.cp=6"}, "parallel.cp = 6"},
    {"schedule needs pp", 0, {"--parallel.schedule=zb_h1"}, "parallel.pp = 2"},
    {"pp keeps weights", 0, {kPp, kFull, kWhole}},
    {"shard_ranks needs shard", 0, {"--parallel.shard_ranks=2"}, "parallel.shard = \"full\""},
    {"shards of one rank", 0, {kFull, "--parallel.shard_ranks=1"}, "parallel.shard = \"none\""},
    {"reshard needs full", 0, {"--parallel.shard=gradients", kWhole}, "parallel.shard = \"full\""},
    {"ordered sums are exact", 0, {kCompress, kOrdered}, "dist.reduction = \"fast\""},
    {"workers keep no averages", 0, {kOuter, "--optim.ema=0.9"}, "leave optim.ema out"},
    {"workers have whole models", 0, {kOuter, kTp}, "leave parallel.tp out, or dist.outer_every"},
    {"workers have whole models", 0, {kOuter, kPp}, "leave parallel.pp out, or dist.outer_every"},
    {"workers have whole models", 0, {kOuter, kCp}, "leave parallel.cp out, or dist.outer_every"},
    {"workers have whole models", 0, {kOuter, kEp}, "leave parallel.ep out, or dist.outer_every"},
    {"workers have whole models", 0, {kOuter, kFull}, "dist.outer_every = 50 (command line) makes"},
    {"workers sum no gradients", 0, {kOuter, kOrdered}, "leave dist.reduction out"},
    {"workers sum no gradients", 0, {kOuter, kCompress}, "use dist.outer_dtype = \"bf16\""},
    {"workers keep all on their device",
     0,
     {kOuter, "--train.offload=optimizer"},
     "leave train.offload out"},
    {"workers balance by losses",
     2,
     {kOuter, kExperts, "--model.router=sigmoid"},
     "use model.bias_rate = 0, or model.router = \"softmax\""},
    {"runs have whole rounds",
     2,
     {kOuter, "--train.steps=120", "--checkpoint.every=25"},
     "do not divide train.steps = 120 (command line), checkpoint.every = 25 (command line): use "
     "--train.steps=150 --checkpoint.every=50"},
    {"runs have whole rounds",
     2,
     {kOuter, "--train.epochs=2"},
     "use train.steps, a multiple of 50, instead"},
    {"the clock of one world",
     0,
     {kTime, kOuter},
     "leave dist.outer_every out, or use train.steps"},
    {"the clock of one world", 0, {kTime, "--dist.elastic=true"}, "leave dist.elastic out"},
    {"elastic runs keep their samples", 2, {"--dist.elastic=true"}, "train.global_batch_size = "},
    {"elastic runs are not traced", 0, {"--dist.elastic=true", "--log.trace=3:5"}},
    {"elastic runs are not traced",
     0,
     {"--dist.elastic=true", "--log.fingerprints=5"},
     "leave log.fingerprints out"},
    {"elastic runs are not traced", 0, {"--dist.elastic=true", "--log.ops=5"}, "leave log.ops out"},
    {"workers have no weights in common", 0, {kOuter, "--log.fingerprints=5"}},
    {"workers have no weights in common", 0, {kOuter, "--log.ops=5"}, "log.ops = \"5\""},
    {"elastic workers are not built", 0, {kOuter, "--dist.elastic=true"}},
    {"elastic experts are not built", 0, {kEp, "--dist.elastic=true"}, "parallel.ep = 4"},
    {"elastic adapters are whole", 0, {kRank, kFull, "--dist.elastic=true"}, "parallel.shard"},
    {"elastic runs have two copies",
     2,
     {kTp, "--dist.elastic=true", "--train.batch_size=1", "--train.global_batch_size=4"},
     "start 4 processes"},
    {"elastic runs have two copies",
     4,
     {kTp, kPp, "--dist.elastic=true", "--train.batch_size=1", "--train.global_batch_size=4"},
     "start 8 processes"},
    {"preferences need whole answers", 0, {kDpo, kRank, kTp}, "parallel.tp = 2"},
    {"preferences need whole answers", 0, {kDpo, kRank, "--virtual.tp=2"}, "virtual.tp = 2"},
    {"preferences need whole answers", 0, {kDpo, kRank, kPp}, "parallel.pp = 2"},
    {"preferences need whole answers", 0, {kDpo, kRank, kCp}, "parallel.cp = 2"},
    {"preferences need whole answers", 0, {kDpo, kRank, "--virtual.cp=2"}, "virtual.cp = 2"},
    {"bf16 gradients of one process", 2, {kBf16, kBf16Grads}, "2 ranks"},
    {"bf16 gradients of few sums", 1, {kBf16, kBf16Grads, "--train.grad_accum=9"}, "9 micro-batch"},
    {"shard_ranks divides the ranks", 4, {kFull, "--parallel.shard_ranks=3"}, "the 4 ranks"},
    {"shards are not compressed", 2, {kFull, kCompress}, "dist.compress = \"none\""},
    {"virtual.tp is for ordered sums", 1, {"--virtual.tp=2"}, "dist.reduction = \"ordered\""},
    {"parts divide the window",
     4,
     {"--parallel.tp=4", "--model.block_size=10"},
     "model.block_size = 12"},
    {"tp divides the heads", 8, {"--parallel.tp=8"}, "4 heads"},
    {"tp fits the heads of keys",
     4,
     {"--parallel.tp=4", "--model.n_head=12", "--model.n_embd=96", "--model.n_kv_head=6"},
     "6 heads"},
    {"parts divide the experts", 2, {kTp, "--model.n_expert=5"}, "5 experts"},
    {"virtual.cp is for ordered sums", 1, {"--virtual.cp=2"}, "dist.reduction = \"ordered\""},
    {"chunks divide the window", 2, {kCp, "--model.block_size=10"}, "use 12"},
    {"ep needs experts", 4, {kEp}, "model.n_expert = 8"},
    {"ep divides the experts", 4, {kExperts, kCp, "--parallel.ep=8"}, "4 experts"},
    {"ep divides the experts", 8, {kExperts, kTp, kEp}, "parallel.tp = 2"},
    {"ep divides the ranks", 2, {kExperts, kCp, kEp}, "--nproc=4"},
    {"ep divides the ranks", 4, {kExperts, kPp, kEp, "--train.grad_accum=4"}, "--nproc=8"},
    {"ep needs equal micro-batches",
     4,
     {kExperts, kEp, "--train.batch_size=1", "--train.global_batch_size=6"},
     "a multiple of 4"},
    // Where no data-parallel ranks sum gradients, bf16 would not be sent.
    {"compression needs data ranks", 2, {kCompress, kPp}},
    {"compression needs data ranks", 2, {kCompress, kTp}},
    {"compression needs data ranks", 2, {kCompress, kCp, kFull}},
    // Nor would weights be sharded.
    {"shards need data ranks", 2, {kFull, kPp}, "4 processes"},
    {"shards need data ranks", 2, {kFull, kTp}, "4 processes"},
    {"shards need data ranks", 2, {kFull, kCp}, "4 processes"},
};

// The options tell what the table says, and where it was written.
TEST(PlanRules, EachRefusesItsPlans) {
  for (const Broken& b : kBroken) {
    SCOPED_TRACE(b.rule + testing::PrintToString(b.arguments));
    RunConfig config;
    Options options({.name = "train_gpt", .summary = "trains a GPT"});
    AddRunOptions(options, config);
    const std::string of_options = test::MessageOf<InputError>([&] { options.Parse(b.arguments); });
    PlanFacts facts{.config = config,
                    .describe = [&](std::string_view key) { return options.Describe(key); }};
    if (b.ranks > 0) {
      EXPECT_EQ(of_options, "no error");
      facts.processes = b.ranks;
      facts.data_ranks = DataRanksOf(config, b.ranks);
      facts.micro_batches = MicroBatches(config.train, facts.data_ranks);
    }
    std::string why;
    const PlanRule* const rule = BrokenRule(facts, &why);
    ASSERT_NE(rule, nullptr);
    EXPECT_EQ(rule->name, b.rule);
    EXPECT_EQ(ErrorOnRanks(b.ranks, b.arguments), "command line: " + why);
    EXPECT_THAT(why, HasSubstr(b.says));
    EXPECT_EQ(rule->of_run, b.ranks > 0);
    EXPECT_TRUE(std::ranges::any_of(rule->keys, [&](std::string_view key) {
      return !key.empty() && options.IsWritten(key);
    })) << "the rule is about none of the options that were written";
  }
}

TEST(PlanRules, AreAllTried) {
  std::set<std::string_view> tried = {"frozen ties are sharded once"};
  for (const Broken& b : kBroken) tried.insert(b.rule);
  std::set<std::string_view> rules;
  for (const PlanRule& rule : PlanRules()) {
    EXPECT_TRUE(rules.insert(rule.name).second) << rule.name;
    EXPECT_NE(rule.keys[0], "") << rule.name;
  }
  EXPECT_EQ(tried, rules);
}

// Without weights, which they need, as a library is asked.
TEST(PlanRules, RulesOfAdapters) {
  const auto broken = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config;
    config.lora.rank = 2;
    change(config);
    const PlanRule* const rule =
        BrokenRule({.config = config, .processes = 4, .data_ranks = 2, .micro_batches = 4});
    return rule != nullptr ? rule->name : "";
  };
  const auto zbv = [](RunConfig& c) {
    c.parallel.pp = 2;
    c.parallel.schedule = "zbv";
    c.parallel.shard = "full";
  };
  EXPECT_EQ(broken([](RunConfig&) {}), "");
  EXPECT_EQ(broken(zbv), "frozen ties are sharded once");
  EXPECT_EQ(broken([&](RunConfig& c) { zbv(c), c.model.tie_embeddings = false; }), "");
  EXPECT_EQ(broken([&](RunConfig& c) { zbv(c), c.lora.rank = 0; }), "");
  for (const char* base : {"nf4", "nf4_single"}) {
    EXPECT_EQ(broken([&](RunConfig& c) { c.lora.base = base, c.parallel.tp = c.parallel.cp = 2; }),
              "");
  }
}

TEST(PlanRules, PlansThatKeepThem) {
  for (const auto& [ranks, arguments] : std::vector<std::pair<int64_t, Arguments>>{
           {1, {}},
           {4, {"--parallel.tp=4"}},
           {4, {kFull, "--parallel.reshard_after_forward=false"}},
           {8, {"--parallel.pp=2", "--parallel.schedule=zbv", "--train.grad_accum=8"}},
           {8, {kPp, kFull, kTp}},
           {4, {kFull, kPp}},
           {4, {kFull, kTp}},
           {4, {kFull, kCp}},
           {1, {kFull}},  // may go on with several
           {4, {kCompress, kPp}},
           {4, {kCompress, kTp}},
           {2, {kCompress, kCp}},  // gradients are summed over the ranks of a sequence, too
           {2, {kCompress}},
           {1, {kCompress}},  // sends nothing, and may go on with several
           // The ranks of a sequence come first among those that split experts.
           {2, {kExperts, kCp, "--parallel.ep=2"}},
           {4, {kExperts, kCp, kTp}},
           {8, {kExperts, kCp, kTp, "--parallel.ep=2"}},
           {4, {kExperts, kCp, kEp}}}) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    EXPECT_EQ(ErrorOnRanks(ranks, arguments), "no error");
    Arguments all = arguments;
    all.push_back("--model.vocab_size=96");
    ParsedRun run(all);
    const RunSetup setup = PrepareShape(run.options, run.config, kCpu, ranks);
    EXPECT_EQ(BrokenRule(FactsOf(setup)), nullptr);
    // A run's own file says the same.
    EXPECT_EQ(Difference(RunConfigFromToml(ToToml(setup.asked), "again"), setup.asked).size(), 0u);
  }
}

// What only the library knows is told in the words of the options, too.
TEST(PlanRules, RefusalsOfTheLibrary) {
  EXPECT_THAT(ErrorOnRanks(3, {kFull, "--train.grad_accum=2", kOrdered}),
              AllOf(HasSubstr("needs a power of two of these ranks"),
                    HasSubstr("parallel.shard=optimizer scatters once a step"),
                    HasSubstr("dist.reduction=fast"), Not(HasSubstr("kWhole"))));
  EXPECT_THAT(ErrorOnRanks(12, {kExperts, kCp, kEp, kFull, "--parallel.shard_ranks=3"}),
              HasSubstr("parallel.ep"));
  EXPECT_THAT(ErrorOnRanks(10, {"--parallel.pp=10", "--train.grad_accum=10"}),
              HasSubstr("a model of 4 layers has 6"));
}

TEST(PlanRules, ValuesThatAreNone) {
  EXPECT_THAT(ErrorOf({"--parallel.shard=all"}), HasSubstr("none, optimizer, gradients, full"));
  EXPECT_THAT(ErrorOf({kPp, "--parallel.schedule=gpipe"}), HasSubstr("1f1b, interleaved, zb_h1"));
  EXPECT_THAT(ErrorOf({"--parallel.pp=0"}), HasSubstr("parallel.pp"));
  EXPECT_THAT(ErrorOf({"--parallel.pp=9223372036854775807"}), HasSubstr("at most 1024"));
  EXPECT_THAT(ErrorOf({"--pp_size=2"}), HasSubstr("did you mean --parallel.pp"));
}

}  // namespace
}  // namespace lockstep::models
