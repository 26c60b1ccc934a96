// train_gpt on several processes, as users start them: what they print and measure, locks, signals,
// evaluations, and what is sent between them.
#include <fmt/format.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <regex>
#include <thread>

#include "core/cuda/device.h"
#include "core/error.h"
#include "core/io/file.h"
#include "tests/gpu_test.h"
#include "tests/rank_runs.h"
#include "tests/selection.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Ranks : public RankRuns {};

TEST_F(Ranks, OnlyTheFirstWritesAndPrints) {
  const auto results = Run(2, "out", {"--train.steps=10", "--log.trace=2:3"});
  EXPECT_THAT(results[0].out, AllOf(HasSubstr("on 2 ranks ="), HasSubstr("step 10/10 | loss"),
                                    HasSubstr("---- sample ----")));
  EXPECT_THAT(results[1].out, IsEmpty());
  EXPECT_THAT(results[1].err, IsEmpty());
  EXPECT_THAT(ReadFile(Path("out/trace-2-3.json")),
              AllOf(HasSubstr("bucket 0"), HasSubstr("bucket 1"), HasSubstr("communication"),
                    HasSubstr("waiting for gradients")));
}

// The first rank locks the folder for all ranks; a second run writes nothing there.
TEST_F(Ranks, ASecondRunInTheFolderIsRefusedOnAllItsRanks) {
  const Arguments endless = Train("out", {"--train.steps=10000000", "--train.log_every=1"});
  Processes first = Start(2, endless);
  first[0]->WaitForOutput("step       15/");
  for (const Result& refused : Wait(Start(2, endless))) {
    EXPECT_EQ(refused.exit_code, 2) << refused;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("in use by another run"),
                                   HasSubstr("process " + std::to_string(first[0]->pid()))));
  }
  EXPECT_FALSE(PathExists(Path("out/flight"))) << "the first run did not fail";
  for (const auto& p : first) p->Signal(SIGKILL);
  for (const auto& p : first) p->Wait();
  Processes third = Start(2, endless);
  third[0]->WaitForOutput("resuming from");
  EXPECT_THAT(third[0]->output(), HasSubstr("resuming from"));
}

// By a quota: for half of the time it does not run.
TEST_F(Ranks, ARankThatKeepsTheOthersWaitingIsNamed) {
  using std::chrono::milliseconds;
  Processes ranks = Start(2, Train("out", {"--train.steps=10000000", "--train.log_every=10000",
                                           "--train.eval_every=0", "--checkpoint.every=0"}));
  ranks[0]->WaitForOutput("step        1/");
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  bool named = false;
  while (!named && std::chrono::steady_clock::now() < give_up) {
    for (int i = 0; i < 10; ++i) {
      ranks[1]->Signal(SIGSTOP);
      std::this_thread::sleep_for(milliseconds(20));
      ranks[1]->Signal(SIGCONT);
      std::this_thread::sleep_for(milliseconds(20));
    }
    named = ReadFile(Path("out/metrics.jsonl")).find("\"late\":\"rank 1 on ") != std::string::npos;
  }
  EXPECT_TRUE(named);
  ranks[1]->Signal(SIGTERM);
  const auto results = Wait(std::move(ranks));
  // It is stopped while it computes and while it sends, so that either may be the cause.
  EXPECT_THAT(results[0].err, ContainsRegex("warning: rank 1 on .* keeps the other ranks waiting, "
                                            "for .* ms \\(.*%\\) of each step: .* than "));
  EXPECT_THAT(results[0].err, Not(HasSubstr("rank 0 on")));
  EXPECT_THAT(ReadFile(Path("out/report.html")), HasSubstr("ms of each step for rank 1 on "));
}

// Data, forward, backward, exposed communication and update add up to the step.
TEST_F(Ranks, TheFiguresOfAStepAddUp) {
  Run(2, "out", {"--train.steps=10"});
  int steps = 0;
  for (const auto& j : Metrics("out")) {
    if (j["step"] == 0) continue;
    const double parts = double{j["data_ms"]} + double{j["forward_ms"]} + double{j["backward_ms"]} +
                         double{j["exposed_ms"]} + double{j["update_ms"]};
    EXPECT_NEAR(parts, double{j["ms"]}, 0.02 * double{j["ms"]}) << j;
    EXPECT_GT(double{j["communication_ms"]}, 0);
    EXPECT_LE(j.value("overlapped_ms", 0.0), double{j["communication_ms"]});
    ++steps;
  }
  EXPECT_EQ(steps, 10);
}

// A signal to any rank stops all of them after the same step, with a checkpoint.
TEST_F(Ranks, ASignalToOneRankStopsAll) {
  for (const int rank : {0, 1}) {
    const std::string out = "out" + std::to_string(rank);
    auto processes = Start(2, Train(out, {"--train.steps=100000", "--checkpoint.every=0"}));
    processes[0]->WaitForOutput(" 5/100000");
    processes[rank]->Signal(SIGTERM);
    const auto results = Wait(std::move(processes));
    for (const Result& r : results) EXPECT_EQ(r.exit_code, 128 + SIGTERM) << r.err;
    EXPECT_THAT(results[0].out, HasSubstr("checkpoint saved"));
    EXPECT_TRUE(PathExists(Path(out + "/latest/DONE")));
  }
}

// On GPUs, ranks ask each other for signals every two seconds, however rarely something is due.
TEST_F(Ranks, ASignalToOneRankOfGpusStopsAllWithinItsGracePeriod) {
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(2);
  auto processes =
      Start(2, Train("out", {GpuOption(), "--train.steps=100000", "--train.log_every=100000",
                             "--train.eval_every=0", "--checkpoint.every=0"}));
  processes[0]->WaitForOutput(" 1/100000");
  processes[1]->Signal(SIGUSR1);
  const auto signaled = std::chrono::steady_clock::now();
  for (const Result& r : Wait(std::move(processes))) EXPECT_EQ(r.exit_code, 128 + SIGUSR1) << r;
  EXPECT_LT(std::chrono::steady_clock::now() - signaled, std::chrono::seconds(30));
  EXPECT_TRUE(PathExists(Path("out/latest/DONE")));
}

// What a run that saves parts puts into out_dir/model at its end.
TEST_F(Ranks, OnlyAModelThatTheRunHasMadeIsReplaced) {
  const auto until = [&](int step, Arguments more) {
    more.insert(more.end(),
                {"--train.global_batch_size=4", "--train.steps=" + std::to_string(step)});
    if (step > 2) more.push_back("--checkpoint.resume=" + Path("out"));
    return more;
  };
  const Arguments full = {"--parallel.shard=full"};
  const auto refused = [&](int step, const std::string& why) {
    for (const Result& r : Wait(Start(2, Train("out", until(step, full))))) {
      EXPECT_EQ(r.exit_code, 2) << r;
      EXPECT_THAT(r.err, AllOf(HasSubstr(why), HasSubstr("--out_dir")));
    }
  };
  MakeDirectories(Path("out/model"));
  WriteFileAtomically(Path("out/model/notes.txt"), "precious");
  refused(2, "no run in " + Path("out") + " has made it");
  Run(1, "out", until(2, {}));
  EXPECT_EQ(ReadFile(Path("out/model/notes.txt")), "precious");
  RemoveTree(Path("out/model"));
  const std::string weights = Path("out/model/model.safetensors");
  Run(2, "out", until(4, full));
  const std::string before = ReadFile(weights);
  const std::string note = Run(2, "out", until(6, full))[0].out;
  EXPECT_THAT(note, HasSubstr("out/model has the weights of step 4 until this run ends"));
  EXPECT_NE(ReadFile(weights), before);
  for (const char* added : {"model/notes.txt", "model/config.json"}) {
    const std::string file = Path("out/") + added;
    const std::string own = PathExists(file) ? ReadFile(file) : "";
    WriteFileAtomically(file, "precious");
    refused(8, file);
    EXPECT_EQ(ReadFile(file), "precious");
    RemoveTree(file);
    if (!own.empty()) WriteFileAtomically(file, own);
  }
  // A run whose checkpoints are whole leaves no older model beside them.
  EXPECT_THAT(Run(1, "out", until(8, {}))[0].out, HasSubstr("had the weights of step 6"));
  EXPECT_FALSE(PathExists(Path("out/model")));
}

// As a kill between the last checkpoint and the end leaves a run.
TEST_F(Ranks, WhatFollowsTheLastCheckpointIsMadeUpFor) {
  const Arguments options = {"--train.steps=4",      "--train.global_batch_size=4",
                             "--train.eval_every=2", "--checkpoint.keep_best=true",
                             "--checkpoint.keep=1",  "--parallel.shard=full"};
  Run(2, "out", options);
  const std::string weights = ReadFile(Path("out/model/model.safetensors"));
  const std::string bytes = Bytes("out", 4);
  // One rank would save no parts, but finds them.
  const std::vector<std::string> all = {"model", "report.html", "best", "latest", "DONE"};
  const std::vector<std::string> but_the_model = {"report.html", "DONE"};
  for (const auto& [ranks, missing] :
       {std::pair(2, all), std::pair(1, all), std::pair(1, but_the_model)}) {
    for (const std::string& made : missing) {
      ASSERT_TRUE(PathExists(Path("out/" + made))) << made;
      RemoveTree(Path("out/" + made));
    }
    EXPECT_THAT(Run(ranks, "out", options)[0].out, HasSubstr("(step 4, the last one)"));
    EXPECT_EQ(ReadFile(Path("out/model/model.safetensors")), weights);
    EXPECT_EQ(Bytes("out", 4), bytes);
    EXPECT_THAT(ReadFile(Path("out/report.html")), HasSubstr(">finished<"));
    EXPECT_TRUE(PathExists(Path("out/best/DONE")) && PathExists(Path("out/latest/DONE")));
  }
  for (const Result& r : Wait(Start(2, Train("out", options)))) {
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_THAT(r.err, HasSubstr("holds a finished run"));
  }
}

TEST_F(Ranks, ADryRunIsPrintedOnce) {
  const auto results = Run(2, "dry", {"--dry_run"});
  EXPECT_THAT(results[0].out, HasSubstr("dry run: nothing was written or trained"));
  EXPECT_EQ(results[1].out, "");
}

// One process, and others among which layers, sequences and weights are divided.
TEST_F(Ranks, AnEvaluationAloneHasTheLossOfTheRun) {
  const Arguments parts = {"--dist.reduction=ordered", "--train.global_batch_size=16",
                           "--virtual.tp=2", "--virtual.cp=2", "--model.vocab_size=256"};
  Arguments options = parts;
  options.push_back("--train.steps=4");
  Run(1, "run", options);
  const double loss = Metrics("run").back()["val_loss"];
  for (const auto& [ranks, plan] :
       {std::pair(1, Arguments{}),
        {8, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.shard=full"}}}) {
    options = parts;
    options.insert(options.end(), plan.begin(), plan.end());
    options.insert(options.end(), {"--eval_only", "--init_from=" + Path("run/latest")});
    const auto results = Wait(Start(ranks, Train("none", options)));
    EXPECT_EQ(results[0].exit_code, 0) << results[0].err;
    EXPECT_THAT(results[0].out, HasSubstr(fmt::format("step 0 | validation loss {:.4f} |", loss)));
    EXPECT_FALSE(PathExists(Path("none")));
  }
  const Result random = RunProgram(Train("none", {"--eval_only"}));
  EXPECT_THAT(random.err, HasSubstr("name what to evaluate, as with --init_from="));
}

TEST_F(Ranks, GradientsMayBeSentAsBf16) {
  for (const auto& [ranks, plan] : {std::pair(2, Arguments{}),
                                    // Also those that ranks with the same experts sum.
                                    {4, {"--parallel.ep=2", "--model.n_expert=4"}}}) {
    const std::string exact = StrCat("exact", ranks), bf16 = StrCat("bf16_", ranks);
    Arguments options = plan;
    options.push_back("--train.steps=20");
    Run(ranks, exact, options);
    options.push_back("--dist.compress=bf16");
    Run(ranks, bf16, options);
    EXPECT_NE(Bytes(exact, 20), Bytes(bf16, 20));
    EXPECT_NEAR(double{Metrics(bf16).back()["loss"]}, double{Metrics(exact).back()["loss"]}, 0.05);
  }
}

// The sizes in MiB of a step's buckets, in order, as the trace reports them.
TEST_F(Ranks, BucketsAreAsLargeAsAsked) {
  const auto sizes = [&](const std::string& out, const Arguments& options) {
    Arguments all = {"--train.steps=3", "--log.trace=2:2"};
    all.insert(all.end(), options.begin(), options.end());
    Run(2, out, all);
    const std::string trace = ReadFile(Path(out + "/trace-2-2.json"));
    std::map<int, double> buckets;
    const std::regex name(R"(bucket (\d+) \(([0-9.e-]+) MiB)");
    for (std::sregex_iterator it(trace.begin(), trace.end(), name), end; it != end; ++it)
      buckets[std::stoi((*it)[1])] = std::stod((*it)[2]);
    return buckets;
  };
  const auto small = sizes("small", {});
  const auto large = sizes("large", {"--dist.bucket_mib=25"});
  const auto large_first = sizes("large_first", {"--dist.first_bucket_mib=25"});
  EXPECT_GT(small.size(), 2u);
  EXPECT_EQ(large.size(), 3u);  // the first, the last, and one in between
  EXPECT_EQ(large_first.size(), 1u);
  EXPECT_LT(small.at(0), large_first.at(0));
}

// As with srun --gpus-per-task=1: each rank sees one device, which may be number 0 on all of them.
TEST_F(Ranks, UseTheOnlyVisibleDevice) {
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(2);
  const auto train = Train("out", {"--train.steps=4", GpuOption()});
  Processes processes;
  for (int r = 0; r < 2; ++r) {
    auto place = Place(r, 2, Path("meeting"));
    place["CUDASIM_DEVICES"] = "1";
    place["CUDA_VISIBLE_DEVICES"] = std::to_string(cuda::Simulated() ? 0 : r);
    processes.push_back(std::make_unique<Subprocess>(train, place));
  }
  for (const Result& r : Wait(std::move(processes))) EXPECT_EQ(r.exit_code, 0) << r.err;
}

// The timeout is only for what ranks do together.
TEST_F(Ranks, ACheckpointMayTakeLongerThanTheTimeout) {
  const Arguments options = {"--train.steps=4", "--checkpoint.every=0", "--dist.timeout=2"};
  Run(2, "quick", options);
  std::vector<std::string> ways = {"--checkpoint.async=false"};
  if (test::TakesAll())
    ways.insert(ways.end(), {"--checkpoint.async=true", "--parallel.shard=full"});
  for (const std::string& more : ways) {
    const std::string out = "out" + more;
    const auto train = Train(out, {options[0], options[1], options[2], more});
    Processes processes;
    for (int r = 0; r < 2; ++r) {
      auto place = Place(r, 2, Path("meeting" + more));
      if (r == 0) place["LOCKSTEP_FAULT"] = "slow@1+";
      processes.push_back(std::make_unique<Subprocess>(train, place));
    }
    const auto results = Wait(std::move(processes));
    for (const Result& r : results) EXPECT_EQ(r.exit_code, 0) << more << r.err;
    if (more == "--checkpoint.async=false") {
      EXPECT_THAT(results[1].err, HasSubstr("rank 0 has been writing a checkpoint for "));
    }
    EXPECT_EQ(Bytes(out, 4), Bytes("quick", 4)) << more;
  }
}

}  // namespace
}  // namespace lockstep
