// train_gpt on several processes, as users start them: the bits are those of one process, and any
// number of ranks continues a run.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/cuda/device.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "tests/gpu_test.h"
#include "tests/rank_runs.h"
#include "tests/sanitized.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class Ranks : public RankRuns {};

// Checkpoints, losses, norms and validation have the same bits, and files the same names.
TEST_F(Ranks, OrderedRunsAreTheSameAtAnyNumberOfRanks) {
  const int steps = test::kSanitized ? 10 : 100;
  const auto options = [&](int global) {
    return Arguments{"--train.steps=" + std::to_string(steps), "--dist.reduction=ordered",
                     "--train.global_batch_size=" + std::to_string(global)};
  };
  for (const auto& [global, counts] :
       {std::pair(16, std::vector{1, 2, 4}), std::pair(24, std::vector{1, 2, 3, 4, 5, 6})}) {
    const auto out = [&, g = global](int ranks) {
      return "g" + std::to_string(g) + "r" + std::to_string(ranks);
    };
    for (const int ranks : counts) {
      if (test::kSanitized && ranks > 3) continue;
      Run(ranks, out(ranks), options(global));
      EXPECT_EQ(Bytes(out(ranks), steps), Bytes(out(1), steps)) << global << " on " << ranks;
      EXPECT_EQ(Numbers(out(ranks)), Numbers(out(1))) << global << " on " << ranks;
    }
  }
}

// In the library's order only rounding differs. The model has no biases (the default): with any
// reduction, only rounding errors train a key's bias (trainer_ranks_test.cc).
TEST_F(Ranks, FastRunsAreTheSameUpToRounding) {
  const int steps = test::kSanitized ? 10 : 100;
  const Arguments fast = {"--train.steps=" + std::to_string(steps), "--optim.lr=0.01",
                          "--train.global_batch_size=16"};
  Arguments ordered = fast;
  ordered.push_back("--dist.reduction=ordered");
  Run(1, "ordered", ordered);
  const std::string file = "/model.safetensors";
  const auto expected = SafetensorsFile::Open(Checkpoint("ordered", steps) + file);
  for (const int ranks : {1, 2, 4}) {
    if (test::kSanitized && ranks > 2) continue;
    const std::string out = "fast" + std::to_string(ranks);
    Run(ranks, out, fast);
    const auto got = SafetensorsFile::Open(Checkpoint(out, steps) + file);
    for (const SafetensorsEntry& e : expected.entries()) {
      const auto a = e.ToTensor().ToVector<float>();
      const auto b = got.Get(e.name).ToTensor().ToVector<float>();
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], 1e-5) << e.name << "[" << i << "] on " << ranks;
      }
    }
    EXPECT_NEAR(double{Metrics(out).back()["loss"]}, double{Metrics("ordered").back()["loss"]},
                1e-5);
  }
}

// Whatever the number of ranks that compute a sequence together; any other that divides virtual.cp
// may continue, and other chunks are refused.
TEST_F(Ranks, ContextParallelRunsAreTheSameAndContinueAsAnyOther) {
  const Arguments same = {"--dist.reduction=ordered",
                          "--train.global_batch_size=8",
                          "--train.steps=8",
                          "--train.eval_every=4",
                          "--model.dropout=0.1",
                          "--checkpoint.every=4",
                          "--virtual.cp=2"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), same.begin(), same.end());
    return more;
  };
  Run(1, "alone", same);
  for (const auto& [ranks, out] : {std::pair(2, "two"), {4, "four"}}) {
    Run(ranks, out, with({"--parallel.cp=2", "--train.sample_every=4"}));
    EXPECT_EQ(Bytes(out, 8), Bytes("alone", 8)) << out;
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
  }
  // In the library's order, whose gradients are summed with those of other samples.
  Run(4, "fast", with({"--parallel.cp=2", "--dist.reduction=fast"}));
  const auto fast = Metrics("fast"), ordered = Metrics("alone");
  for (size_t i = 0; i < ordered.size(); ++i) {
    if (!ordered[i].contains("loss")) continue;
    EXPECT_NEAR(fast.at(i).at("loss"), ordered[i].at("loss"), 1e-5) << i;
  }
  const std::string middle = "--checkpoint.resume=" + Checkpoint("four", 4);
  Run(1, "continued", with({middle}));
  EXPECT_EQ(Bytes("continued", 8), Bytes("alone", 8));
  const auto refused = Wait(Start(1, Train("other", with({"--virtual.cp=4", middle}))));
  EXPECT_NE(refused[0].exit_code, 0);
  EXPECT_THAT(refused[0].err, AllOf(HasSubstr("was trained with virtual.cp = 2"),
                                    HasSubstr("this run has virtual.cp = 4")));
}

// Whatever the number of ranks that compute a layer together; any other that divides virtual.tp may
// continue, and other parts are refused.
TEST_F(Ranks, TensorParallelRunsAreTheSameAndContinueAsAnyOther) {
  const Arguments same = {"--dist.reduction=ordered", "--train.global_batch_size=8",
                          "--train.steps=12",         "--model.n_embd=32",
                          "--model.n_head=4",         "--train.eval_every=6",
                          "--model.vocab_size=128",   "--model.dropout=0.1",
                          "--checkpoint.every=6",     "--virtual.tp=4"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), same.begin(), same.end());
    return more;
  };
  Run(1, "alone", same);
  for (const auto& [ranks, tp] : {std::pair(2, "2"), {4, "4"}, {4, "2"}}) {
    const std::string out = std::string("tp") + tp + "of" + std::to_string(ranks);
    Run(ranks, out, with({std::string("--parallel.tp=") + tp, "--train.sample_every=6"}));
    EXPECT_EQ(Bytes(out, 12), Bytes("alone", 12)) << out;
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
    // No rank has all of it.
    EXPECT_TRUE(PathExists(Checkpoint(out, 12) + "/parts.json")) << out;
  }
  // In the library's order, and with other parts, only rounding differs.
  Run(2, "fast", with({"--parallel.tp=2", "--virtual.tp=0", "--dist.reduction=fast"}));
  const auto fast = Metrics("fast"), ordered = Metrics("alone");
  for (size_t i = 0; i < ordered.size(); ++i) {
    if (!ordered[i].contains("loss")) continue;
    EXPECT_NEAR(fast.at(i).at("loss"), ordered[i].at("loss"), 1e-5) << i;
  }
  const std::string middle = "--checkpoint.resume=" + Checkpoint("tp4of4", 6);
  Run(2, "continued", with({"--parallel.tp=2", middle}));
  EXPECT_EQ(Bytes("continued", 12), Bytes("alone", 12));
  const auto refused = Wait(Start(1, Train("other", with({"--virtual.tp=2", middle}))));
  EXPECT_NE(refused[0].exit_code, 0);
  EXPECT_THAT(refused[0].err, AllOf(HasSubstr("was trained with virtual.tp = 4"),
                                    HasSubstr("this run has virtual.tp = 2")));
}

// Whatever the number of ranks that compute a sequence together, and each of its chunks.
TEST_F(Ranks, RunsOfPartsOfSequencesAndLayersAreTheSameAndContinueAsAnyOther) {
  const Arguments same = {"--dist.reduction=ordered", "--train.global_batch_size=8",
                          "--train.steps=8",          "--model.n_embd=32",
                          "--model.vocab_size=128",   "--model.dropout=0.1",
                          "--train.eval_every=4",     "--checkpoint.every=4",
                          "--virtual.cp=2",           "--virtual.tp=2"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), same.begin(), same.end());
    return more;
  };
  Run(1, "alone", same);
  const std::string cp = "--parallel.cp=2", tp = "--parallel.tp=2";
  for (const auto& [ranks, out, more] :
       {std::tuple(4, "four", "--train.sample_every=4"), {8, "shards", "--parallel.shard=full"}}) {
    Run(ranks, out, with({cp, tp, more}));
    EXPECT_EQ(Bytes(out, 8), Bytes("alone", 8)) << out;
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
  }
  Run(2, "continued", with({tp, "--checkpoint.resume=" + Checkpoint("shards", 4)}));
  EXPECT_EQ(Bytes("continued", 8), Bytes("alone", 8));
  const auto refused = Wait(Start(4, Train("other", with({cp, tp, "--model.block_size=12"}))));
  EXPECT_NE(refused[0].exit_code, 0);
  EXPECT_THAT(refused[0].err, AllOf(HasSubstr("with 2 parts (virtual.tp or parallel.tp) in each"),
                                    HasSubstr("use 16, or fewer chunks")));
}

// However experts are split across ranks, and however these save them; any other ranks may
// continue.
TEST_F(Ranks, ExpertParallelRunsAreTheSameAndContinueAsAnyOther) {
  const Arguments same = {
      "--dist.reduction=ordered", "--train.global_batch_size=8", "--train.steps=12",
      "--model.n_embd=32",        "--model.n_expert=8",          "--model.router=sigmoid",
      "--train.eval_every=6",     "--model.dropout=0.1",         "--checkpoint.every=6"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), same.begin(), same.end());
    return more;
  };
  Run(1, "alone", same);
  for (const auto& [ranks, ep, more] : {std::tuple(2, "2", "--train.sample_every=6"),
                                        {4, "2", "--dist.check_every=4"},
                                        {4, "4", "--checkpoint.sharded=false"}}) {
    const std::string out = std::string("ep") + ep + "of" + std::to_string(ranks);
    const auto results = Run(ranks, out, with({std::string("--parallel.ep=") + ep, more}));
    EXPECT_EQ(Bytes(out, 12), Bytes("alone", 12)) << out;
    EXPECT_EQ(ReadFile(Checkpoint(out, 12) + "/buffers.safetensors"),
              ReadFile(Checkpoint("alone", 12) + "/buffers.safetensors"));
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
    EXPECT_THAT(results[0].out, HasSubstr(ep[0] == '4' ? "2 on each rank" : "4 on each rank"));
  }
  const std::string middle = "--checkpoint.resume=" + Checkpoint("ep2of4", 6);
  Run(1, "alone_on", with({middle}));
  EXPECT_EQ(Bytes("alone_on", 12), Bytes("alone", 12));
  Run(4, "ep_on", with({"--parallel.ep=4", middle}));
  EXPECT_EQ(Bytes("ep_on", 12), Bytes("alone", 12));
  const auto refused = Wait(Start(2, Train("other", with({"--parallel.ep=4"}))));
  EXPECT_NE(refused[0].exit_code, 0);
  EXPECT_THAT(refused[0].err, HasSubstr("does not divide the 2 ranks of this run"));
}

// The same where experts are split in stages, across ranks that shard weights or split layers, too.
TEST_F(Ranks, ExpertParallelRunsGoWithEveryOtherMode) {
  const Arguments same = {"--dist.reduction=ordered",
                          "--train.global_batch_size=8",
                          "--train.steps=8",
                          "--model.n_embd=32",
                          "--model.n_expert=8",
                          "--model.n_shared_expert=1",
                          "--model.n_head=4",
                          "--model.vocab_size=128",
                          "--train.eval_every=4",
                          "--model.dropout=0.1",
                          "--checkpoint.every=4",
                          "--virtual.tp=2",
                          "--model.tie_embeddings=false"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), same.begin(), same.end());
    more.push_back("--parallel.ep=2");
    return more;
  };
  Run(1, "alone", same);
  for (const auto& [ranks, out, options] :
       {std::tuple(4, "pp", Arguments{"--parallel.pp=2", "--train.sample_every=4"}),
        {4, "shard", {"--parallel.shard=full", "--dist.check_every=4"}},
        {4, "copies", {"--parallel.shard=gradients", "--parallel.shard_ranks=2"}},
        {4, "tp", {"--parallel.tp=2", "--checkpoint.sharded=false"}},
        {8, "all", {"--parallel.pp=2", "--parallel.tp=2", "--parallel.shard=full"}}}) {
    Run(ranks, out, with(options));
    EXPECT_EQ(Bytes(out, 8), Bytes("alone", 8)) << out;
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
  }
  Run(4, "on", with({"--parallel.shard=full", "--checkpoint.resume=" + Checkpoint("all", 4)}));
  EXPECT_EQ(Bytes("on", 8), Bytes("alone", 8));
  Arguments fewer = with({"--parallel.shard=full", "--parallel.shard_ranks=2"});
  fewer.push_back("--parallel.ep=4");
  const auto refused = Wait(Start(4, Train("other", fewer)));
  EXPECT_NE(refused[0].exit_code, 0);
  EXPECT_THAT(refused[0].err, HasSubstr("must divide the 2 that shard a copy of the model"));
}

// And where experts are split across ranks that compute a sequence together: some of them, all, or
// also those of other samples.
TEST_F(Ranks, ExpertParallelRunsGoWithPartsOfSequences) {
  const Arguments same = {"--dist.reduction=ordered",
                          "--train.global_batch_size=8",
                          "--train.steps=4",
                          "--model.n_embd=32",
                          "--model.n_expert=8",
                          "--model.router=sigmoid",
                          "--model.n_head=4",
                          "--model.vocab_size=128",
                          "--train.eval_every=2",
                          "--model.dropout=0.1",
                          "--checkpoint.every=2",
                          "--virtual.cp=4",
                          "--virtual.tp=2"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), same.begin(), same.end());
    return more;
  };
  const std::string cp2 = "--parallel.cp=2", cp4 = "--parallel.cp=4", ep2 = "--parallel.ep=2",
                    ep4 = "--parallel.ep=4", full = "--parallel.shard=full",
                    check = "--dist.check_every=1";
  Run(1, "alone", same);
  const auto expect_same = [&](const std::string& out) {
    EXPECT_EQ(Bytes(out, 4), Bytes("alone", 4)) << out;
    EXPECT_EQ(ReadFile(Checkpoint(out, 4) + "/buffers.safetensors"),
              ReadFile(Checkpoint("alone", 4) + "/buffers.safetensors"));
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
  };
  for (const auto& [out, options] : {std::pair("fewer", Arguments{cp4, ep2, check}),
                                     {"as_many", {cp2, ep2, "--checkpoint.sharded=false"}},
                                     {"more", {cp2, ep4, "--train.sample_every=2"}},
                                     {"shards", {cp2, ep2, full, check}},
                                     {"layers", {cp2, "--parallel.tp=2", check}}}) {
    Run(4, out, with(options));
    expect_same(out);
  }
  Run(4, "on", with({cp4, ep2, "--checkpoint.resume=" + Checkpoint("more", 2)}));
  EXPECT_EQ(Bytes("on", 4), Bytes("alone", 4));
  Run(4, "shards_on", with({cp2, ep4, full, "--checkpoint.resume=" + Checkpoint("fewer", 2)}));
  EXPECT_EQ(Bytes("shards_on", 4), Bytes("alone", 4));
}

// The same whatever is divided among ranks, and however they save it; any other ranks may continue.
TEST_F(Ranks, ShardedRunsAreTheSameAndContinueAsAnyOther) {
  const Arguments same = {"--dist.reduction=ordered", "--train.global_batch_size=8",
                          "--train.steps=40", "--model.n_embd=96", "--train.eval_every=20"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), same.begin(), same.end());
    return more;
  };
  Run(1, "alone", same);
  const int64_t of_alone = Metrics("alone").back()["memory_bytes"];
  const std::vector<std::pair<int, Arguments>> plans = {
      {4, {"--parallel.shard=full"}},
      {2, {"--parallel.shard=full", "--parallel.reshard_after_forward=false"}},
      {4, {"--parallel.shard=full", "--parallel.shard_ranks=2"}},
      {2, {"--parallel.shard=gradients"}},
      {2, {"--parallel.shard=optimizer"}},
      {2, {"--parallel.shard=full", "--checkpoint.sharded=false"}},
      {2, {"--parallel.shard=full", "--checkpoint.sharded=false", "--checkpoint.async=false"}},
      {2, {"--parallel.shard=full", "--checkpoint.async=false"}},
  };
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto& [ranks, options] = plans[i];
    const std::string out = "sharded" + std::to_string(i);
    Run(ranks, out, with(options));
    EXPECT_EQ(Bytes(out, 40), Bytes("alone", 40)) << out;
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
    // A quarter of the state, but chunks of the norm, which are not cut, are large for this model.
    if (i == 0) {
      EXPECT_LT(int64_t{Metrics(out).back()["memory_bytes"]}, of_alone);
    }
    // Parts, and a folder for transformers at the end.
    const bool parts = !testing::Matches(Contains("--checkpoint.sharded=false"))(options);
    EXPECT_EQ(PathExists(Checkpoint(out, 20) + "/parts.json"), parts) << out;
    for (const char* file : {"/model.safetensors", "/config.json", "/tokenizer.json"}) {
      EXPECT_EQ(ReadFile((parts ? Path(out) + "/model" : Checkpoint(out, 40)) + file),
                ReadFile(Checkpoint("alone", 40) + file));
    }
  }
  const auto sample = [&](const std::string& out) {
    return RunProgram({"models/sample_gpt", "--checkpoint=" + Path(out), "--tokens=20"}).out;
  };
  EXPECT_EQ(sample("sharded0"), sample("alone"));
  const Result made =
      RunProgram({"models/consolidate", "--checkpoint=" + Checkpoint("sharded0", 20),
                  "--to=" + Path("made"), "--max_file_gb=1e-4"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_TRUE(PathExists(Path("made/model.safetensors.index.json")));
  EXPECT_EQ(sample("made"), sample("alone/checkpoints/step-00000020"));
}

// Every sample once: the same losses of the same steps.
TEST_F(Ranks, ARunMovesToOtherRanksAndBack) {
  const Arguments same = {"--dist.reduction=ordered", "--train.global_batch_size=8",
                          "--model.n_embd=96", "--train.eval_every=20", "--train.steps=40"};
  Run(1, "alone", same);
  const auto until_killed = [&](int ranks, const std::string& shard, int step) {
    Arguments options = same;
    options.push_back("--parallel.shard=" + shard);
    KillAfterCheckpoint(Start(ranks, Train("moved", options)), "moved", step);
  };
  until_killed(4, "full", 10);
  until_killed(2, "none", 20);
  until_killed(1, "none", 30);
  Arguments last = same;
  last.push_back("--parallel.shard=full");
  EXPECT_THAT(Run(4, "moved", last)[0].out, HasSubstr("resuming from"));
  EXPECT_EQ(Bytes("moved", 40), Bytes("alone", 40));
  EXPECT_EQ(Numbers("moved"), Numbers("alone"));
}

// The same on GPUs, one process each, through NCCL; comparing each call changes nothing.
TEST_F(Ranks, OrderedRunsAreTheSameAtAnyNumberOfGpus) {
  const int most = test::kSanitized ? 2 : 8;
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(most);
  const Arguments options = {GpuOption(), "--train.steps=4", "--dist.reduction=ordered",
                             "--train.global_batch_size=16"};
  Arguments checked = options;
  checked.push_back("--dist.check=full");
  Arguments sharded = options;
  sharded.push_back("--parallel.shard=full");
  Run(1, "r1", options);
  Run(2, "checked", checked);
  Run(2, "sharded", sharded);
  for (const int ranks : {2, 4, 8}) {
    if (ranks <= most) Run(ranks, "r" + std::to_string(ranks), options);
  }
  for (const std::string out : {"checked", "sharded", "r2", "r4", "r8"}) {
    if (!PathExists(Path(out))) continue;
    EXPECT_EQ(Bytes(out, 4), Bytes("r1", 4)) << out;
    EXPECT_EQ(Numbers(out), Numbers("r1")) << out;
  }
}

// Each rank's own part waits in its host's memory; files are the same, for runs with or without.
TEST_F(Ranks, OffloadedRunsAreTheSameOnGpus) {
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(2);
  const auto with = [](Arguments more, const std::string& steps) {
    for (const std::string& option :
         {GpuOption(), "--train.steps=" + steps, std::string("--dist.reduction=ordered"),
          std::string("--train.global_batch_size=4"), std::string("--train.precision=bf16")}) {
      more.push_back(option);
    }
    return more;
  };
  const std::string all = "--train.offload=activations,optimizer,weights";
  Run(1, "alone", with({}, "4"));
  for (const char* shard : {"none", "optimizer", "full"}) {
    const std::string out = shard;
    Run(2, out, with({all, "--parallel.shard=" + out}, "4"));
    EXPECT_EQ(Bytes(out, 4), Bytes("alone", 4)) << out;
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
  }
  const std::string schedule = "--optim.decay_steps=4";
  Run(2, "moved", with({all, "--parallel.shard=full", schedule}, "2"));
  Run(1, "moved", with({schedule, "--checkpoint.resume=" + Path("moved")}, "4"));
  EXPECT_EQ(Bytes("moved", 4), Bytes("alone", 4));
}

// Promise 11, where the ranks sum in the library's order, in which both uses of a tied weight are
// added in each micro-batch.
TEST_F(Ranks, TwoRanksAreAccumulationOverTwo) {
  const std::string untied = "--model.tie_embeddings=false";
  Run(2, "ranks", {"--train.steps=20", untied});
  Run(1, "accumulation",
      {"--train.steps=20", "--train.grad_accum=2", "--dist.reduction=ordered", untied});
  EXPECT_EQ(Bytes("ranks", 20), Bytes("accumulation", 20));
  EXPECT_EQ(Numbers("ranks"), Numbers("accumulation"));
}

// Promise 17: another number of ranks resumes to the same bits, or refuses.
TEST_F(Ranks, AnotherNumberOfRanksContinuesExactlyOrRefuses) {
  const Arguments same = {"--dist.reduction=ordered", "--train.global_batch_size=8",
                          "--train.steps=60"};
  Run(1, "straight", same);
  KillAfterCheckpoint(Start(2, Train("moved", same)), "moved", 10);
  const auto rest = Run(4, "moved", same);
  EXPECT_THAT(rest[0].out, HasSubstr("resuming from"));
  EXPECT_EQ(Bytes("moved", 60), Bytes("straight", 60));
  // Without a global batch size the number of ranks decides how much a step trains on.
  KillAfterCheckpoint(Start(2, Train("other", {"--train.steps=100000"})), "other", 10);
  for (const Result& r : Wait(Start(1, Train("other", {"--train.steps=100000"})))) {
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_THAT(r.err, AllOf(HasSubstr("was trained with 64 tokens a step, but 1 rank of this "
                                       "configuration make 32"),
                             HasSubstr("train.global_batch_size")));
  }
}

}  // namespace
}  // namespace lockstep
