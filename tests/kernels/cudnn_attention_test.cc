// Which attention kernels are chosen, and what cuDNN makes of attention's graphs. The latter needs
// its library, but no GPU: bazel test --config=cuda //tests/kernels:cudnn_attention_test
#include "kernels/attention/cudnn_attention.h"

#include <dlfcn.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "core/cuda/device.h"
#include "kernels/attention/attention_kernels.h"

namespace lockstep::cuda {
namespace {

using testing::HasSubstr;

constexpr AttentionKernels kAuto = AttentionKernels::kAuto, kPlain = AttentionKernels::kPlain,
                           kFlash = AttentionKernels::kFlash, kCudnn = AttentionKernels::kCudnn;

Tensor Q(const Shape& shape, DType dtype = DType::kBF16) {
  return Tensor::Empty(shape, dtype, kMeta);
}
const Shape kSmall{1, 64, 2, 64}, kLarge{8, 1024, 12, 64};

// The choice on a device whose reason against cuDNN is `why_not`, and whether it was asked for.
AttentionKernels Choose(AttentionKernels wanted, const Tensor& q, bool dropout = false,
                        const std::string& why_not = "", bool* asked = nullptr) {
  return ChooseAttentionKernels(wanted, q, dropout,
                                [&]() -> std::string_view {
                                  if (asked != nullptr) *asked = true;
                                  return why_not;
                                })
      .kernels;
}

TEST(AttentionChoice, LargeProblemsGoToCudnnWhereItIs) {
  EXPECT_EQ(Choose(kAuto, Q(kLarge)), kCudnn);
  EXPECT_EQ(Choose(kAuto, Q(kLarge), false, "not installed"), kFlash);
  EXPECT_EQ(Choose(kFlash, Q(kLarge)), kFlash);
  EXPECT_EQ(Choose(kPlain, Q(kLarge)), kPlain);
}

TEST(AttentionChoice, CudnnIsAskedOnlyIfItMayRun) {
  bool asked = false;
  EXPECT_EQ(Choose(kAuto, Q(kSmall), false, "", &asked), kFlash);
  EXPECT_EQ(Choose(kAuto, Q(kLarge), true, "", &asked), kFlash);
  EXPECT_EQ(Choose(kAuto, Q({8, 1024, 12, 60}), false, "", &asked), kPlain);
  EXPECT_EQ(Choose(kAuto, Q(kLarge, DType::kF32), false, "", &asked), kPlain);
  EXPECT_EQ(Choose(kCudnn, Q({0, 1024, 12, 64}), false, "", &asked), kFlash);
  EXPECT_FALSE(asked);
  EXPECT_EQ(Choose(kAuto, Q(kLarge), false, "", &asked), kCudnn);
  EXPECT_TRUE(asked);
}

TEST(AttentionChoice, CudnnOnRequestTakesSmallProblemsToo) {
  EXPECT_EQ(Choose(kCudnn, Q(kSmall)), kCudnn);
  EXPECT_EQ(Choose(kCudnn, Q(kSmall), true), kFlash);  // dropout
  EXPECT_EQ(Choose(kCudnn, Q(kSmall, DType::kF32)), kPlain);
  try {
    Choose(kCudnn, Q(kSmall), false, "not installed");
    ADD_FAILURE() << "no error";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("(LOCKSTEP_ATTENTION=cudnn) cannot run here: not installed"));
  }
}

// A GPT problem: q, k and v in one tensor.
CudnnAttentionProblem Problem(bool backward, int64_t batch, int64_t length, int64_t heads,
                              int64_t kv_heads, int64_t d) {
  CudnnAttentionProblem p;
  p.backward = backward;
  p.batch = batch;
  p.length = length;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.d = d;
  const int64_t row = (heads + 2 * kv_heads) * d;
  p.q = p.k = p.v = {length * row, row, d};
  p.y = {length * heads * d, heads * d, d};
  if (backward) {
    p.dq = p.dk = p.dv = p.q;
    p.dy = p.y;
  }
  return p;
}

TEST(CudnnAttention, IsNotAvailableOnASimulatedGpu) {
  if (!Simulated()) GTEST_SKIP() << "the GPUs of this build are real";
  const Stream stream{{DeviceType::kCuda, 0}};
  EXPECT_EQ(WhyNoCudnnAttention(stream), "a simulated GPU has no cuDNN");
  EXPECT_EQ(CudnnAttentionForward(stream, {}), "a simulated GPU has no cuDNN");
  EXPECT_EQ(CudnnAttentionBackward(stream, {}), "a simulated GPU has no cuDNN");
  EXPECT_THROW(AskCudnnAttention(Problem(false, 1, 64, 2, 2, 64), "{}"), Error);
}

struct Gpu {
  std::string properties;  // as cuDNN describes it
  int version;
  int64_t gib;
};

Gpu Describe(const std::string& name, int version, int processors, int threads, int shared, int l2,
             int64_t gib) {
  return {StrCat(R"({"deviceName":")", name, R"(","deviceVer":)", version,
                 R"(,"multiProcessorCount":)", processors, R"(,"maxSharedMemoryPerBlockOptin":)",
                 shared, R"(,"l2CacheSize":)", l2, R"(,"maxThreadsPerSM":)", threads,
                 R"(,"maxCtasPerSM":)", threads / 64, R"(,"totalGlobalMem":)", gib << 30,
                 R"(,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
                 R"("regsPerBlock":65536,"smClockRateKHz":1410000,"memClockRateKHz":1593000,)"
                 R"("warpSize":32,"maxSharedMemoryPerBlock":49152,)"
                 R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)"
                 R"("pciDeviceId":0,"maxThreadsPerBlock":1024,)"
                 R"("isTccDriver":0,"supportCoopLaunch":1,)"
                 R"("driverVer":13000,"cudaDeviceId":0})"),
          version, gib};
}

class CudnnPlans : public testing::TestWithParam<Gpu> {
 protected:
  // cuDNN needs the driver's library to make a plan; the toolkit has a stand-in of the same name,
  // whose functions fail.
  void SetUp() override {
    if (Simulated()) GTEST_SKIP() << "a simulated GPU has no cuDNN";
    const char* home = std::getenv("CUDA_HOME");
    const std::string stub =
        StrCat(home == nullptr ? "/usr/local/cuda" : home, "/lib64/stubs/libcuda.so");
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr &&
        dlopen(stub.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      GTEST_SKIP() << "there is neither libcuda.so.1 nor " << stub;
    }
    if (dlopen("libcudnn.so.9", RTLD_NOW) == nullptr) GTEST_SKIP() << "there is no libcudnn.so.9";
  }
};

// Multi-head and grouped-query attention, sizes that no tile divides, a single query.
TEST_P(CudnnPlans, CudnnHasAnEngineForEachGraph) {
  for (const bool backward : {false, true}) {
    for (const auto& p :
         {Problem(backward, 8, 1024, 12, 12, 64), Problem(backward, 1, 4096, 32, 8, 128),
          Problem(backward, 2, 197, 4, 2, 72), Problem(backward, 1, 1, 2, 2, 64)}) {
      SCOPED_TRACE(StrCat(backward ? "backward" : "forward", " of T ", p.length, ", D ", p.d));
      const int64_t bytes = AskCudnnAttention(p, GetParam().properties).workspace_bytes;
      const int64_t scores = 2 * p.batch * p.heads * p.length * p.length;
      if (backward) {
        // The gradient of the scores: it is the backward without atomics.
        EXPECT_GE(bytes, scores);
      } else {
        EXPECT_LT(bytes, 1 << 20);
      }
    }
  }
}

// Backward of each preset at each batch has a plan without atomics, in slices within the GPU's
// limit, and by the same engine as the whole. Below 26 GiB the heads of llama-3.2-1b that share
// keys do not fit (512 MiB): it runs on the flash kernels.
TEST_P(CudnnPlans, EveryPresetFitsItsWorkspace) {
  struct Preset {
    const char* name;
    int64_t length, heads, kv_heads, d;
  };
  const int64_t most = std::min(int64_t{1} << 30, (GetParam().gib << 30) / 50);
  for (const Preset& preset :
       {Preset{"shakespeare-char", 256, 6, 6, 64}, Preset{"shakespeare-char-cpu", 64, 4, 4, 32},
        Preset{"gpt2", 1024, 12, 12, 64}, Preset{"gpt2-medium", 1024, 16, 16, 64},
        Preset{"gpt2-large", 1024, 20, 20, 64}, Preset{"gpt2-xl", 1024, 25, 25, 64},
        Preset{"llama-tiny", 64, 4, 2, 32}, Preset{"tinyllama-1.1b", 2048, 32, 4, 64},
        Preset{"llama-3.2-1b", 8192, 32, 8, 64}, Preset{"llama-3.2-3b", 8192, 24, 8, 128},
        Preset{"llama-2-7b", 4096, 32, 32, 128}}) {
    for (const int64_t batch : {1, 2, 4, 8, 12, 16, 32, 64}) {
      SCOPED_TRACE(StrCat(preset.name, " at B ", batch));
      const auto whole =
          Problem(true, batch, preset.length, preset.heads, preset.kv_heads, preset.d);
      std::string engine;
      const auto workspace = [&](const CudnnAttentionProblem& p) {
        const CudnnChoice choice = AskCudnnAttention(p, GetParam().properties);
        engine = choice.engine;
        return choice.workspace_bytes;
      };
      if (GetParam().gib < 26 && preset.length == 8192 && preset.d == 64) {
        EXPECT_THROW(FitWorkspace(whole, most, workspace), Error);
        continue;
      }
      const auto [slices, slice] = FitWorkspace(whole, most, workspace);
      EXPECT_EQ(engine, AskCudnnAttention(whole, GetParam().properties).engine);
      EXPECT_EQ(slices.batches * slice.batch, batch);
      EXPECT_EQ(slices.groups * slice.kv_heads, preset.kv_heads);
    }
  }
}

TEST_P(CudnnPlans, CudnnSaysWhyItHasNone) {
  try {
    AskCudnnAttention(Problem(false, 2, 64, 2, 2, 60), GetParam().properties);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuDNN"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpus, CudnnPlans,
    testing::Values(Describe("NVIDIA H100 80GB HBM3", 900, 132, 2048, 232448, 52428800, 80),
                    Describe("NVIDIA A100-SXM4-40GB", 800, 108, 2048, 166912, 41943040, 40),
                    Describe("NVIDIA GeForce RTX 4090", 890, 128, 1536, 101376, 75497472, 24)),
    [](const auto& gpu) { return StrCat("Sm", gpu.param.version / 10); });

}  // namespace
}  // namespace lockstep::cuda
