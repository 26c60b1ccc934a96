// train_gpt and sample_gpt on a GPU (simulated unless built with --config=cuda), compared with the
// CPU.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "core/cuda/device.h"
#include "core/cuda/graph_space.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

const std::string kDevice = cuda::Simulated() ? "sim" : "cuda";

const Arguments kTiny = {
    "--model.block_size=16",   "--train.batch_size=3", "--train.grad_accum=2",
    "--train.steps=20",        "--optim.warmup=4",     "--optim.lr=1e-2",
    "--checkpoint.every=20",   "--train.eval_every=8", "--train.eval_batches=2",
    "--train.sample_tokens=5", "--train.log_every=6"};

const Arguments kGpt2 = {"--model.n_layer=2", "--model.n_head=2", "--model.n_embd=24",
                         "--model.dropout=0.1"};
const Arguments kLlama = {
    "--model.n_layer=2",     "--model.n_head=4",      "--model.n_kv_head=2",
    "--model.n_embd=32",     "--model.norm=rms_norm", "--model.activation=swiglu",
    "--model.position=rope", "--model.bias=false",    "--model.tie_embeddings=false",
    "--model.dropout=0"};

struct Step {
  double loss, grad_norm, lr, val_loss;
};

class TrainDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
    folder_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(folder_);
    MakeDirectories(folder_);
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  Result Train(const std::string& out, const std::string& device, const Arguments& model,
               const Arguments& more = {},
               const std::map<std::string, std::string>& environment = {}) const {
    Arguments all = {"models/train_gpt", "--device=" + device, "--out_dir=" + Path(out)};
    for (const Arguments* part : {&kTiny, &model, &more}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return RunProgram(all, environment);
  }

  // What metrics.jsonl says about steps 1, 2, ...
  std::vector<Step> Steps(const std::string& out) const {
    std::vector<Step> steps;
    std::istringstream lines(ReadFile(Path(out + "/metrics.jsonl")));
    int64_t next = 0;
    for (std::string line; std::getline(lines, line); ++next) {
      const auto j = Json::parse(line);
      EXPECT_EQ(j["step"], next) << "lines come in order, and none is missing";
      if (next == 0) continue;
      steps.push_back({j["loss"], j["grad_norm"], j["lr"], j.value("val_loss", 0.0)});
    }
    return steps;
  }

  // `tolerance` is for losses; gradient norms have a relative tolerance ten times as large.
  void FollowsTheCpu(const Arguments& model, const Arguments& more = {}, double tolerance = 1e-4) {
    const Result cpu = Train("cpu", "cpu", model), gpu = Train("gpu", kDevice, model, more);
    ASSERT_EQ(cpu.exit_code, 0) << cpu.err;
    ASSERT_EQ(gpu.exit_code, 0) << gpu.err;
    EXPECT_THAT(gpu.out, HasSubstr("on " + kDevice + ":0"));
    const std::vector<Step> want = Steps("cpu"), got = Steps("gpu");
    ASSERT_EQ(want.size(), 20u);
    ASSERT_EQ(got.size(), 20u);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i].loss, want[i].loss, tolerance) << "step " << i + 1;
      EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, 10 * tolerance * want[i].grad_norm)
          << "step " << i + 1;
      EXPECT_EQ(got[i].lr, want[i].lr);
      EXPECT_NEAR(got[i].val_loss, want[i].val_loss, tolerance) << "step " << i + 1;
    }
    EXPECT_LT(want.back().loss, want.front().loss - 0.3)
        << "it does not learn, so the comparison means nothing";
  }

  std::string folder_;
};

TEST_F(TrainDevice, Gpt2FollowsTheCpu) { FollowsTheCpu(kGpt2); }
TEST_F(TrainDevice, LlamaFollowsTheCpu) { FollowsTheCpu(kLlama); }

// Compared with the CPU's fp32: bf16 has 8 bits, fp16 and TF32 11, and otherwise a GPU's step
// equals the CPU's.
const Arguments kBf16 = {"--train.precision=bf16"};
TEST_F(TrainDevice, Gpt2InBf16FollowsFp32) { FollowsTheCpu(kGpt2, kBf16, 0.02); }
TEST_F(TrainDevice, LlamaInBf16FollowsFp32) { FollowsTheCpu(kLlama, kBf16, 0.02); }
TEST_F(TrainDevice, Gpt2InFp16FollowsFp32) {
  FollowsTheCpu(kGpt2, {"--train.precision=fp16"}, 5e-3);
}
TEST_F(TrainDevice, Tf32FollowsFp32) { FollowsTheCpu(kGpt2, {"--train.precision=tf32"}, 2e-3); }

TEST_F(TrainDevice, BitsDoNotDependOnTheOrderOfThreads) {
  const auto bytes = [&](const std::string& out) {
    const std::string latest = Path(out + "/latest");
    return ReadFile(latest + "/model.safetensors") + ReadFile(latest + "/optimizer.safetensors");
  };
  const Arguments steps = {"--train.steps=6"};
  for (const char* order : {"forward", "reverse", "random:5"}) {
    const Result run = Train(order, kDevice, kGpt2, steps, {{"CUDASIM_ORDER", order}});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(bytes(order), bytes("forward")) << order;
  }
}

// As when a user looks for a kernel at fault: the reason names no innocent one.
TEST_F(TrainDevice, WaitingForEachKernelLeavesOutGraphsAndSaysSo) {
  const Arguments steps = {"--train.steps=3"};
  ASSERT_EQ(Train("graphs", kDevice, kGpt2, steps).exit_code, 0);
  const Result run = Train("eager", kDevice, kGpt2, steps, {{"LOCKSTEP_CUDA_SYNC", "1"}});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  if (cuda::GraphSpace::Supported({DeviceType::kCuda, 0})) {
    EXPECT_THAT(run.err, HasSubstr("without CUDA graphs: each kernel is waited for"));
  }
  EXPECT_EQ(ReadFile(Path("graphs/latest/model.safetensors")),
            ReadFile(Path("eager/latest/model.safetensors")));
}

// The device computes as late as it may, so that code that forgets to wait reads old values.
TEST_F(TrainDevice, BitsDoNotDependOnWhenTheDeviceComputes) {
  const Arguments steps = {"--train.steps=6"};
  ASSERT_EQ(Train("now", kDevice, kGpt2, steps).exit_code, 0);
  const Result late = Train("late", kDevice, kGpt2, steps, {{"CUDASIM_DELAY", "50"}});
  ASSERT_EQ(late.exit_code, 0) << late.err;
  EXPECT_EQ(ReadFile(Path("now/latest/model.safetensors")),
            ReadFile(Path("late/latest/model.safetensors")));
}

// In bf16 with heads of 12 numbers, which tensor cores do not support.
TEST_F(TrainDevice, ReportsWhichKernelsRanAndOnceWhichAreSlow) {
  const Result run = Train("out", kDevice, kGpt2, {"--train.precision=bf16", "--train.steps=3"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = Json::parse(ReadFile(Path("out/kernels.json")));
  std::map<std::string, int> ops, slow;
  for (const auto& choice : json["choices"]) {
    ++ops[choice["op"]];
    slow[choice["op"]] += !choice["why_slow"].get<std::string>().empty();
    if (choice["op"] == "matmul") {
      EXPECT_THAT(choice["kernel"].get<std::string>(), testing::StartsWith("cuBLASLt"));
    } else if (choice["op"] == "attention_backward") {
      EXPECT_EQ(choice["kernel"], "plain");
      EXPECT_THAT(choice["why_slow"].get<std::string>(), HasSubstr("a multiple of 8 numbers"));
    }
  }
  EXPECT_GT(ops["matmul"], 4);
  EXPECT_EQ(slow["matmul"], 0);
  EXPECT_GT(slow["attention_forward"], 0);
  EXPECT_GT(slow["attention_backward"], 0);
  for (const char* op : {"attention_forward", "attention_backward"}) {
    const size_t first = run.err.find(StrCat("warning: ", op, " of bf16"));
    ASSERT_NE(first, std::string::npos) << run.err;
    EXPECT_EQ(run.err.find(StrCat("warning: ", op), first + 1), std::string::npos) << run.err;
  }
  const std::string lines = ReadFile(Path("out/metrics.jsonl"));
  EXPECT_THAT(lines, HasSubstr("\"slow_kernels\":"));
}

TEST_F(TrainDevice, ACpuHasNoChoiceOfKernelsToReport) {
  ASSERT_EQ(Train("out", "cpu", kGpt2, {"--train.steps=1"}).exit_code, 0);
  EXPECT_FALSE(PathExists(Path("out/kernels.json")));
}

TEST_F(TrainDevice, SamplesAsTheCpuDoes) {
  ASSERT_EQ(Train("out", kDevice, kLlama).exit_code, 0);
  std::string texts[2];
  for (int i : {0, 1}) {
    const Result run =
        RunProgram({"models/sample_gpt", "--checkpoint=" + Path("out/latest"), "--prompt=The ",
                    "--tokens=40", "--temperature=0", "--device=" + (i == 0 ? "cpu" : kDevice)});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    texts[i] = run.out;
  }
  EXPECT_THAT(texts[0], testing::StartsWith("The "));
  EXPECT_EQ(texts[0], texts[1]);
}

// Found while the next step is computed, but reported for its own step.
TEST_F(TrainDevice, ALossThatIsNotFiniteIsReportedForItsStep) {
  const Result run = Train("out", kDevice, kGpt2,
                           {"--optim.name=sgd", "--optim.lr=1000", "--optim.clip=0",
                            "--optim.warmup=0", "--train.eval_every=0", "--train.log_every=1000"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("the update was not made"));
  const std::string lines = ReadFile(Path("out/metrics.jsonl"));  // of the completed steps
  const auto reported = std::count(lines.begin(), lines.end(), '\n');
  EXPECT_GT(reported, 0);
  EXPECT_THAT(run.err, HasSubstr("step " + std::to_string(reported + 1) + ": the loss is"));
}

// Checked before anything is allocated on the device; a dry run shows the plan first.
TEST_F(TrainDevice, ARunThatDoesNotFitIntoTheDevicesMemoryIsRefused) {
  const std::string memory = cuda::Simulated() ? "8M" : "";
  if (memory.empty()) GTEST_SKIP() << "only a simulated GPU is as small as this test needs";
  const Result run =
      Train("out", kDevice, kGpt2, {"--train.batch_size=400"}, {{"CUDASIM_MEMORY", memory}});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, testing::AllOf(HasSubstr("has 8.00 MiB"),
                                      HasSubstr("What would fit: --train.batch_size="),
                                      HasSubstr("The plan: ")));
  EXPECT_THAT(run.out, testing::Not(HasSubstr("there are")));
  const Result dry = Train("out", kDevice, kGpt2, {"--train.batch_size=400", "--dry_run"},
                           {{"CUDASIM_MEMORY", memory}});
  EXPECT_EQ(dry.exit_code, 2) << dry;
  EXPECT_THAT(dry.out, testing::ContainsRegex("there are +8.00 MiB"));
  EXPECT_EQ(dry.err, run.err);
}

TEST_F(TrainDevice, TextsOfAModelThatDoesNotFitSayWhatTakesLess) {
  if (!cuda::Simulated()) GTEST_SKIP() << "only a simulated GPU is as small as this test needs";
  ASSERT_EQ(Train("out", "cpu", kLlama, {"--train.steps=1"}).exit_code, 0);
  const auto sample = [&](const std::string& more) {
    return RunProgram({"models/sample_gpt", "--checkpoint=" + Path("out/latest"), "--prompt=The ",
                       "--tokens=4", "--device=sim", more},
                      {{"CUDASIM_MEMORY", "1M"}});
  };
  const Result run = sample("--num_samples=2");
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_THAT(run.err, testing::AllOf(HasSubstr("out of memory on sim:0"),
                                      HasSubstr("What takes less: --batch_size=1; --base=nf4"),
                                      HasSubstr("--nproc=2")));
  const Result least = sample("--base=nf4");
  EXPECT_EQ(least.exit_code, 1) << least;
  EXPECT_THAT(least.err, testing::HasSubstr("What takes less: --batch_size=1; --nproc=2"));
}

TEST_F(TrainDevice, TheOtherBackendIsRefused) {
  const Result run = Train("out", cuda::Simulated() ? "cuda" : "sim", kGpt2);
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr(cuda::Simulated() ? "Build with --config=cuda" : "simulate"));
}

}  // namespace
}  // namespace lockstep
