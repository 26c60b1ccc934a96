// //tools:blame names what was planted (planted_train_gpt.cc), of which it knows nothing.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Arguments = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

constexpr const char* kPlanted = "tests/blame/planted_train_gpt";

class Blame : public testing::Test {
 protected:
  Blame() {
    folder_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(folder_);
    MakeDirectories(folder_);
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  void Train(const std::string& out, const std::string& program, const Arguments& more,
             const Environment& environment = {}) const {
    Arguments all = {program,
                     "--out_dir=" + Path(out),
                     "--model.n_layer=2",
                     "--model.n_head=2",
                     "--model.n_embd=16",
                     "--model.block_size=16",
                     "--model.dropout=0.1",
                     "--train.batch_size=2",
                     "--train.steps=4",
                     "--train.eval_every=0",
                     "--train.sample_every=0",
                     "--threads=1",
                     "--log.fingerprints=2"};
    // An option may be given once.
    for (const std::string& argument : more) {
      const std::string key = argument.substr(0, argument.find('=') + 1);
      std::erase_if(all, [&](const std::string& a) { return a.starts_with(key); });
      all.push_back(argument);
    }
    const Result result = RunProgram(all, environment);
    ASSERT_EQ(result.exit_code, 0) << result;
  }

  Result Compare(const Environment& environment = {}, const Arguments& more = {}) const {
    Arguments all = {"tools/blame", Path("a"), Path("b"), "--train_gpt_a=models/train_gpt",
                     std::string("--train_gpt_b=") + kPlanted};
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram(all, environment);
  }

  // What is said of a run with this fault, beside one without. `ranks` of each.
  std::string SaidOf(const std::string& fault, int ranks, const std::string& rank = "",
                     Arguments plan = {}) const {
    const Environment planted = {{"LOCKSTEP_PLANT", fault}, {"LOCKSTEP_PLANT_RANK", rank}};
    plan.push_back("--train.global_batch_size=12");
    for (const char* run : {"a", "b"}) RemoveTree(Path(run));
    if (ranks > 1) plan.push_back("--nproc=" + std::to_string(ranks));
    Train("a", "models/train_gpt", plan);
    Train("b", kPlanted, plan, planted);
    const Result result = Compare(planted);
    EXPECT_EQ(result.exit_code, 1) << result;
    EXPECT_THAT(result.out, HasSubstr("options, data and arithmetic are the same"));
    return result.out;
  }

  std::string folder_;
};

TEST_F(Blame, EqualRunsAreEqual) {
  Train("a", "models/train_gpt", {});
  Train("b", kPlanted, {});
  const Result result = Compare();
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_THAT(result.out, HasSubstr("equal: the fingerprints of 3 steps from 0 to 4, of data (1), "
                                    "activations (5), gradients ("));
  // A value may be a word of its own.
  const Result apart = Compare({}, {"--folder", Path("new"), "--recorded"});
  EXPECT_EQ(apart.exit_code, 0) << apart;
}

// The folder of the runs themselves, as a place to play in.
TEST_F(Blame, RunsAreNotPlayedOver) {
  Train("a", "models/train_gpt", {"--seed=1"});
  Train("b", "models/train_gpt", {"--seed=2"});
  const Result result = Compare({}, {"--folder=" + folder_});
  EXPECT_EQ(result.exit_code, 2) << result;
  EXPECT_THAT(result.err, HasSubstr("exists already"));
  EXPECT_TRUE(PathExists(Path("a/config.toml")) && PathExists(Path("b/config.toml")));
}

// Another plan, and another number of micro-steps on a rank, give the same bits.
TEST_F(Blame, EqualPlansAreEqual) {
  const std::string ordered = "--dist.reduction=ordered", batch = "--train.global_batch_size=8";
  Train("a", "models/train_gpt", {ordered, batch});
  Train("b", "models/train_gpt", {ordered, batch, "--nproc=2", "--parallel.shard=full"});
  const Result result = Compare();
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_THAT(result.out, AllOf(HasSubstr("ranks: 1 -> 2"), HasSubstr("equal: ")));
}

TEST_F(Blame, NamesAnOption) {
  Train("a", "models/train_gpt", {"--seed=1"});
  Train("b", "models/train_gpt", {"--seed=2"});
  const Result result = Compare({}, {"--recorded"});
  EXPECT_EQ(result.exit_code, 1) << result;
  EXPECT_THAT(result.out, AllOf(HasSubstr("seed: 1 -> 2"),
                                HasSubstr("step 0 differs first in the weights of ")));
}

struct Fault {
  const char* name;
  const char* where;  // as it is said
};

// Another rounding of one element, forward and backward.
TEST_F(Blame, NamesAKernel) {
  for (const Fault& fault :
       {Fault{"attention", "h.0.attn: 'attention', forward"},
        Fault{"attention backward", "h.1.attn: 'attention', backward"}, Fault{"norm", "h.0.ln_"},
        Fault{"norm backward", "ln_f: 'residual_norm', backward"},
        Fault{"product", "h.0.attn.c_attn: 'linear', forward"},
        Fault{"product backward", "lm_head: 'linear', backward"},
        Fault{"loss backward", "'softmax_cross_entropy', backward"},
        Fault{"embedding", "wpe: 'token_position_embedding', forward"}}) {
    EXPECT_THAT(SaidOf(fault.name, 1),
                AllOf(HasSubstr("they part in step 3"), HasSubstr("what differs first: a kernel"),
                      HasSubstr("on rank 0, in "), HasSubstr(fault.where), HasSubstr("1 of "),
                      HasSubstr("of the largest element: rounding")))
        << fault.name;
  }
}

TEST_F(Blame, NamesTheOptimizer) {
  EXPECT_THAT(SaidOf("adamw", 1), AllOf(HasSubstr("they part in step 3: first in the weights of "),
                                        HasSubstr("what differs first: the optimizer's update")));
}

TEST_F(Blame, NamesAStaleMask) {
  EXPECT_THAT(SaidOf("stale mask", 1),
              AllOf(HasSubstr("they part in step 3"), HasSubstr("on rank 0, in h.0.ln_2"),
                    HasSubstr("what differs first: a kernel"), HasSubstr("a mask")));
}

TEST_F(Blame, NamesTheSumOfMicroBatches) {
  EXPECT_THAT(SaidOf("sum", 1, "", {"--dist.reduction=ordered"}),
              AllOf(HasSubstr("what differs first: a collective"),
                    HasSubstr("the sum of the gradient of wte.weight")));
}

TEST_F(Blame, NamesTheSeedOfALayer) {
  EXPECT_THAT(SaidOf("seed", 1), AllOf(HasSubstr("they part in step 3"),
                                       HasSubstr("what differs first: the random numbers"),
                                       HasSubstr("on rank 0, in h.1.attn.resid_dropout")));
}

TEST_F(Blame, NamesTheDataOfARank) {
  EXPECT_THAT(
      SaidOf("data", 3, "1"),
      AllOf(HasSubstr("they part in step 1: first in the data of tokens"),
            HasSubstr("what differs first: the data"), HasSubstr("on rank 1: micro-batch ")));
}

TEST_F(Blame, NamesTheOrderOfACollective) {
  EXPECT_THAT(SaidOf("order", 3),
              AllOf(HasSubstr("they part in step 3: first in the gradients of "),
                    HasSubstr("what differs first: a collective"), HasSubstr("all_reduce")));
}

TEST_F(Blame, NamesTheRankOfAKernel) {
  EXPECT_THAT(SaidOf("attention", 2, "1"),
              AllOf(HasSubstr("what differs first: a kernel"),
                    HasSubstr("on rank 1, in h.0.attn: 'attention', forward")));
}

TEST_F(Blame, NamesACorruptMessage) {
  EXPECT_THAT(SaidOf("message", 3, "2"), AllOf(HasSubstr("what differs first: a collective"),
                                               HasSubstr("1 of 8256 elements")));
}

TEST_F(Blame, SaysWhatIsMissing) {
  Train("a", "models/train_gpt", {"--log.fingerprints=0"});
  const Result result = Compare();
  EXPECT_EQ(result.exit_code, 2) << result;
  EXPECT_THAT(result.err, AllOf(HasSubstr("there are no fingerprints"),
                                HasSubstr("--log.fingerprints=N"), Not(HasSubstr("terminate"))));
}

}  // namespace
}  // namespace lockstep
