// How a program finds the simulated GPU's library, and its error for one that does not fit.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/cuda/device.h"
#include "core/error.h"
#include "core/io/file.h"
#include "tests/gpu_test.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr const char* kProgram = "models/train_gpt";
constexpr const char* kLibrary = "kernels/libsimulated_gpu.so";
constexpr const char* kBuild = "bazel build -c opt //kernels:simulated_gpu";

// The library of //kernels; null in a build for real GPUs.
extern "C" [[gnu::weak]] const char lockstep_simulated_gpu_stamp[];

class SimulatedGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::Simulated()) GTEST_SKIP() << "a build for real GPUs has no simulated one";
    SKIP_UNLESS_PROGRAMS_HAVE_GPUS(1);
    folder_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(folder_);
    MakeDirectories(folder_);
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  Result Train(const std::string& program, const std::string& device, const std::string& out,
               const std::string& library = "") const {
    return RunProgram(
        {program, "--device=" + device, "--out_dir=" + Path(out), "--train.steps=3",
         "--model.n_layer=1", "--model.n_head=2", "--model.n_embd=16", "--model.block_size=8",
         "--train.batch_size=2", "--train.sample_tokens=0", "--train.eval_batches=1"},
        {{"LOCKSTEP_SIMULATED_GPU", library}});
  }

  std::string Weights(const std::string& out) const {
    return ReadFile(Path(out + "/latest/model.safetensors"));
  }

 private:
  std::string folder_;
};

TEST_F(SimulatedGpu, IsFoundBesideTheProgramOrWhereTheEnvironmentSays) {
  const Result beside = Train(kProgram, "sim", "beside");
  ASSERT_EQ(beside.exit_code, 0) << beside.err;
  EXPECT_THAT(beside.out, HasSubstr("sim:0"));

  // A program without the library beside it takes one from elsewhere, whatever its path and time.
  std::filesystem::copy_file(kProgram, Path("program"));
  std::filesystem::copy_file(kLibrary, Path("elsewhere.so"));
  const Result elsewhere = Train(Path("program"), "sim:1", "elsewhere", Path("elsewhere.so"));
  ASSERT_EQ(elsewhere.exit_code, 0) << elsewhere.err;
  EXPECT_TRUE(Weights("elsewhere") == Weights("beside"));
}

// A driver that does not start is not "no GPU".
TEST_F(SimulatedGpu, ErrorsOfTheDriversStartAreNamed) {
  const std::pair<const char*, const char*> kErrors[] = {
      {"35", "cudaErrorInsufficientDriver"},
      {"34", "install NVIDIA's driver"},
      {"46", "--compute-mode=0"},
      {"802", "(cudaErrorSystemNotReady)"},
      {"802", "nvidia-fabricmanager"},
      {"803", "restart the machine"},
      {"804", "take them out of LD_LIBRARY_PATH"},
      {"999", "(cudaErrorUnknown)"}};
  for (const auto& [number, text] : kErrors) {
    const Result run = RunProgram({kProgram, "--device=sim", "--out_dir=" + Path("none")},
                                  {{"CUDASIM_STARTUP_ERROR", number}});
    EXPECT_EQ(run.exit_code, 1) << run;
    EXPECT_THAT(run.err, HasSubstr("CUDA does not start: "));
    EXPECT_THAT(run.err, HasSubstr(text));
  }
  const Result none = RunProgram({kProgram, "--device=sim", "--out_dir=" + Path("none")},
                                 {{"CUDASIM_STARTUP_ERROR", "100"}});
  EXPECT_EQ(none.exit_code, 2) << none;
  EXPECT_THAT(none.err, HasSubstr("CUDA finds no GPU here"));
}

// In a process that has begun nothing else, as a first typing error is.
TEST_F(SimulatedGpu, RefusesASettingThatItDoesNotKnow) {
  const std::pair<const char*, const char*> kSettings[] = {
      {"CUDASIM_CAPABILITY", "75"},     {"CUDASIM_CAPABILITY", "100"}, {"CUDASIM_DEVICES", "9"},
      {"CUDASIM_MEMORY", "1T"},         {"CUDASIM_LEAKS", "yes"},      {"CUDASIM_ORDER", "any"},
      {"CUDASIM_STARTUP_ERROR", "1000"}};
  for (const auto& [name, value] : kSettings) {
    const Result run = RunProgram(
        {kProgram, "--device=sim", "--train.steps=1", "--model.n_layer=1", "--model.n_head=2",
         "--model.n_embd=16", "--train.sample_tokens=0", "--out_dir=" + Path("none")},
        {{name, value}});
    EXPECT_EQ(run.exit_code, 2) << run;
    EXPECT_THAT(run.err, HasSubstr(StrCat("cudasim: ", name, "=", value)));
  }
}

TEST_F(SimulatedGpu, SaysWhatToBuildWhereThereIsNoLibrary) {
  std::filesystem::copy_file(kProgram, Path("program"));
  for (const std::string& library : {std::string(), Path("none.so")}) {
    const Result run = Train(Path("program"), "sim", "out", library);
    EXPECT_NE(run.exit_code, 0);
    EXPECT_THAT(
        run.err,
        HasSubstr(std::string("--device=sim needs the simulated GPU; build it with ") + kBuild));
  }
  const Result cpu = Train(Path("program"), "cpu", "cpu");
  EXPECT_EQ(cpu.exit_code, 0) << cpu.err;
}

TEST_F(SimulatedGpu, RefusesALibraryOfOtherSources) {
  std::string bytes = ReadFile(kLibrary);
  const size_t stamp = bytes.find(lockstep_simulated_gpu_stamp);
  ASSERT_NE(stamp, bytes.npos);
  bytes[stamp] = bytes[stamp] == '0' ? '1' : '0';
  WriteFileAtomically(Path("stale.so"), bytes);
  const Result run = Train(kProgram, "sim", "out", Path("stale.so"));
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("built from other sources than this program; rebuild it with "));
  EXPECT_THAT(run.err, HasSubstr(kBuild));

  WriteFileAtomically(Path("broken.so"), "no library" + std::string(lockstep_simulated_gpu_stamp));
  EXPECT_THAT(Train(kProgram, "sim", "out", Path("broken.so")).err,
              HasSubstr("cannot load the simulated GPU"));
}

}  // namespace
}  // namespace lockstep
