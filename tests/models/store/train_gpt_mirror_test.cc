// Runs that have a mirror, killed at random moments on machines that are lost: each goes on from
// the mirror on an empty one, to the bits of an undisturbed run.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "core/io/file.h"
#include "tests/models/store/s3_servers.h"
#include "tests/models/temp_folder.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Arguments = std::vector<std::string>;

// How often a run is killed; train_gpt_mirror_long_test does it 50 times.
int Kills() {
  const char* text = std::getenv("LOCKSTEP_MIRROR_KILLS");
  return text == nullptr ? 5 : std::atoi(text);
}

class MirrorRun : public testing::Test {
 protected:
  Arguments Command(const std::string& out, const Arguments& more) const {
    Arguments all = {"models/train_gpt",        "--model.n_layer=2",      "--model.n_head=2",
                     "--model.n_embd=64",       "--model.block_size=32",  "--model.dropout=0.1",
                     "--train.steps=250",       "--train.batch_size=8",   "--train.eval_every=0",
                     "--train.log_every=50",    "--optim.warmup=10",      "--checkpoint.every=25",
                     "--train.sample_tokens=0", "--train.eval_batches=1", "--threads=1"};
    all.push_back("--out_dir=" + root_.Path(out));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::string Bytes(const std::string& out) const {
    const std::string folder = root_.Path(out) + "/checkpoints/step-00000250/";
    return ReadFile(folder + "model.safetensors") + ReadFile(folder + "optimizer.safetensors");
  }

  // Nothing that a program wrote may have it.
  void ExpectNowhere(const std::string& secret, const std::string& folder) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      EXPECT_EQ(ReadFile(entry.path()).find(secret), std::string::npos) << entry.path();
    }
  }

  // Kills a run whose mirror is `place` until it has come to its end.
  void Check(const std::string& place, const Environment& environment) {
    const auto begin = std::chrono::steady_clock::now();
    const Result undisturbed = RunProgram(Command("undisturbed", {}));
    ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed;
    const std::string bytes = Bytes("undisturbed");
    const auto whole = std::chrono::steady_clock::now() - begin;
    std::mt19937 random(7);
    int copied = 0;
    Result r;
    for (int kill = 0; kill <= Kills(); ++kill) {
      RemoveTree(root_.Path("lost"));  // the machine has gone, and with it all that it had
      Subprocess program(Command("lost", {"--checkpoint.mirror=" + place}), environment);
      if (kill < Kills()) {
        std::this_thread::sleep_for(whole * (random() % 1000) / 1000);
        program.Signal(SIGKILL);
      }
      r = program.Wait();
      copied += r.out.find("copied the checkpoint of step ") != std::string::npos;
      EXPECT_EQ(r.err.find("has no metrics of step"), std::string::npos) << r;
    }
    ASSERT_EQ(r.exit_code, 0) << r;
    EXPECT_GT(copied, 0);
    ASSERT_EQ(Bytes("lost"), bytes);
    // What is there is what a machine of tomorrow gets.
    RemoveTree(root_.Path("lost"));
    r = RunProgram(Command("lost", {"--checkpoint.mirror=" + place}), environment);
    ASSERT_EQ(r.exit_code, 0) << r;
    EXPECT_THAT(r.out, HasSubstr("copied the checkpoint of step 250 from " + place));
    ASSERT_EQ(Bytes("lost"), bytes);
    EXPECT_EQ(
        ReadFile(root_.Path("lost/metrics.jsonl")).find("\"step\":1,") != std::string::npos ||
            ReadFile(root_.Path("lost/metrics.jsonl")).find("\"step\": 1,") != std::string::npos,
        true);
  }

  test::TempFolder root_{"mirror_run"};
};

TEST_F(MirrorRun, ToAFolder) { Check(root_.Path("place"), {}); }

// On moto where it is installed, which checks signatures; else on a server of the test's own.
TEST_F(MirrorRun, ToS3ThroughFaults) {
  const auto moto = test::StartMoto();
  test::FaultyS3 server(moto ? moto->port() : "");
  const Environment environment =
      moto ? test::S3Environment(server.url(), moto->word(1), moto->word(2))
           : test::S3Environment(server.url());
  server.FailAtRandom(50);
  Check("s3://bucket/run", environment);
  ExpectNowhere(environment.at("AWS_SECRET_ACCESS_KEY"), root_.path());
  ExpectNowhere(environment.at("AWS_ACCESS_KEY_ID"), root_.path());
}

class MirrorErrors : public MirrorRun {
 protected:
  Result Run(const std::string& out, const Arguments& more, const Environment& environment) const {
    Arguments all = Command(out, {"--train.steps=4", "--checkpoint.every=2"});
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram(all, environment);
  }
};

TEST_F(MirrorErrors, AtTheStartSayWhatToDo) {
  test::FaultyS3 server;
  const Environment environment = test::S3Environment(server.url());
  const Arguments mirror = {"--checkpoint.mirror=s3://bucket/run"};
  for (const auto& [fault, words] : {std::pair("key", "check the credentials"),
                                     {"secret", "check the credentials"},
                                     {"expired", "get new credentials"},
                                     {"denied", "no permission"},
                                     {"skew", "this machine's clock is off"},
                                     {"region", "set AWS_REGION=eu-central-1"},
                                     {"bucket", "there is no bucket"}}) {
    server.FailNext({fault});
    const Result r = Run("out", mirror, environment);
    EXPECT_EQ(r.exit_code, 2) << fault << r;
    EXPECT_THAT(r.err, AllOf(HasSubstr(words), Not(HasSubstr("secretOfTests")),
                             Not(HasSubstr("AKIDTEST"))));
  }
  const Result typed = Run("out", {"--checkpoint.mirror=s3://AKIDTEST:top@bucket"}, environment);
  EXPECT_EQ(typed.exit_code, 2) << typed;
  EXPECT_THAT(typed.err, AllOf(HasSubstr("s3://bucket/prefix"), Not(HasSubstr("AKIDTEST"))));
  EXPECT_FALSE(PathExists(root_.Path("out/config.toml")));
}

TEST_F(MirrorErrors, AnotherRunsPlaceIsRefused) {
  const Arguments mirror = {"--checkpoint.mirror=" + root_.Path("place")};
  ASSERT_EQ(Run("first", mirror, {}).exit_code, 0);
  const Result other = Run("second", {mirror[0], "--optim.lr=0.0031"}, {});
  EXPECT_EQ(other.exit_code, 2) << other;
  EXPECT_THAT(other.err, AllOf(HasSubstr("has the checkpoints of another run"),
                               HasSubstr("optim.lr"), HasSubstr("Name another place")));
  EXPECT_FALSE(PathExists(root_.Path("second/config.toml")));
  EXPECT_EQ(Run("third", {mirror[0], "--checkpoint.resume=none"}, {}).exit_code, 2);
}

// A mirror that cannot be reached does not end a run; at its end it says what is missing, and the
// same command goes on with that.
TEST_F(MirrorErrors, WhatIsMissingIsSaidAtTheEnd) {
  test::FaultyS3 server;
  const Environment environment = test::S3Environment(server.url());
  const Arguments mirror = {"--checkpoint.mirror=s3://bucket/run"};
  // The start has its requests; all that follow are refused.
  std::vector<std::string> faults(4);
  faults.insert(faults.end(), 200, "denied");
  server.FailNext(faults);
  const Result r = Run("out", mirror, environment);
  EXPECT_EQ(r.exit_code, 0) << r;
  EXPECT_THAT(r.err, AllOf(HasSubstr("s3://bucket/run does not have"), HasSubstr("no permission"),
                           HasSubstr("the same command, run again")));
  server.FailNext({});
  const Result again = Run("out", mirror, environment);
  EXPECT_EQ(again.exit_code, 0) << again;
  EXPECT_EQ(Run("elsewhere", mirror, environment).exit_code, 0);
  EXPECT_EQ(Run("out", mirror, environment).exit_code, 2);  // it is finished
}

TEST_F(MirrorErrors, ModelsAreReadFromThere) {
  test::FaultyS3 server;
  Environment environment = test::S3Environment(server.url());
  environment["XDG_CACHE_HOME"] = root_.Path("cache");
  ASSERT_EQ(Run("out", {"--checkpoint.mirror=s3://bucket/run"}, environment).exit_code, 0);
  RemoveTree(root_.Path("out"));
  const Result sample =
      RunProgram({"models/sample_gpt", "--checkpoint=s3://bucket/run", "--prompt=a", "--tokens=5"},
                 environment);
  EXPECT_EQ(sample.exit_code, 0) << sample;
  EXPECT_THAT(sample.err, HasSubstr("fetching s3://bucket/run"));
  const Result tuned = Run("tuned", {"--init_from=s3://bucket/run/latest"}, environment);
  EXPECT_EQ(tuned.exit_code, 0) << tuned;
  const Result further =
      Run("further", {"--checkpoint.resume=s3://bucket/run", "--train.steps=6"}, environment);
  EXPECT_EQ(further.exit_code, 0) << further;
  EXPECT_THAT(further.out, HasSubstr("(step 4)"));
}

}  // namespace
}  // namespace lockstep
