#include "models/train/utilization.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/cuda/device.h"
#include "models/gpt/gpt.h"

namespace lockstep::models {
namespace {

TEST(Utilization, DatasheetsAreFoundByTheLongestNameThatFits) {
  EXPECT_EQ(DatasheetFlops("NVIDIA H100 80GB HBM3", "bf16"), 989.4e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA H100 PCIe", "bf16"), 756e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA H200", "tf32"), 494.7e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA GH200 480GB", "bf16"), 989.4e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA A100-SXM4-80GB", "fp32"), 19.5e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA A100 80GB PCIe", "bf16"), 312e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA A10", "bf16"), 125e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA A10G", "bf16"), 70e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA A10G", "tf32"), 35e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA H200 NVL", "bf16"), 835.5e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA B200", "bf16"), 2250e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA GB200", "bf16"), 2500e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA RTX A6000", "bf16"), 154.8e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA GeForce RTX 4090", "bf16"), 165.2e12);
  EXPECT_EQ(DatasheetFlops("NVIDIA L40S", "bf16"), 362e12);
  EXPECT_EQ(DatasheetFlops("Tesla V100-SXM2-16GB", "bf16"), std::nullopt);  // it has none
  EXPECT_EQ(DatasheetFlops("A GPU of tomorrow", "bf16"), std::nullopt);
}

// A name that only resembles a listed one has no figure, rather than that of another card.
TEST(Utilization, OtherCardsHaveNoFigure) {
  for (const char* name :
       {"NVIDIA RTX A1000", "NVIDIA RTX A4000", "NVIDIA RTX A400", "NVIDIA RTX A3000 Laptop GPU",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3080 Ti", "NVIDIA GeForce RTX 4080 SUPER", "NVIDIA A100X",
        "NVIDIA GeForce RTX 3080 with Max-Q Design", "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A40-48Q", "NVIDIA L4 Ti", "NVIDIA", ""}) {
    EXPECT_EQ(DatasheetFlops(name, "bf16"), std::nullopt) << name;
  }
}

// llm.c's: 6N for the parameters and 6LCT for causal attention, forward and backward. GPT-2 of
// 124 M parameters at 178,000 tokens/s has 45.8% of an A100's 312 TFLOP/s.
TEST(Utilization, FollowsLlmcsFormula) {
  const GptConfig gpt2{.vocab_size = 50257,
                       .block_size = 1024,
                       .n_layer = 12,
                       .n_head = 12,
                       .n_embd = 768,
                       .bias = true};
  const double parameters = 124439808;
  const double flops = 6 * parameters + 6.0 * 12 * 768 * 1024;
  EXPECT_EQ(Gpt(gpt2).FlopsPerToken(1024), flops);
  GptConfig wide = gpt2;
  wide.head_dim = 128;
  // Queries, keys and values with their biases, and c_proj, become twice as wide.
  const double more = 12 * 768.0 * (4 * 768 + 3);
  EXPECT_EQ(Gpt(wide).FlopsPerToken(1024), flops + 6 * more + 6.0 * 12 * 768 * 1024);
  GptConfig looked_up = gpt2;  // rows of tables, which are no products
  looked_up.value_embed = true;
  EXPECT_EQ(Gpt(looked_up).FlopsPerToken(1024), flops);
  EXPECT_EQ(Gpt(looked_up).NumParameters(), Gpt(gpt2).NumParameters() + 6 * 50257 * 768);
  Utilization u{.flops_per_token = flops, .ranks = 1, .peak_flops = 312e12};
  EXPECT_NEAR(*u.Mfu(178e3), 178e3 * flops / 312e12, 1e-12);
  EXPECT_EQ(u.GemmShare(178e3), std::nullopt);
  EXPECT_EQ(u.Describe(178e3), "mfu 46%");
  // Tokens of all ranks, on the devices of all ranks.
  u.ranks = 8;
  u.gemm_flops = 250e12;
  EXPECT_NEAR(*u.Mfu(8 * 178e3), 178e3 * flops / 312e12, 1e-12);
  EXPECT_NEAR(*u.GemmShare(8 * 178e3), 178e3 * flops / 250e12, 1e-12);
  EXPECT_EQ(u.Describe(8 * 178e3), "mfu 46% (57% of GEMM)");
  u.peak_flops = {};
  EXPECT_EQ(u.Describe(8 * 178e3), "57% of GEMM");
  EXPECT_EQ(Utilization{}.Describe(1), "");
}

// On a busy machine products are measured as slower than they are.
TEST(Utilization, ARateThatTrainingExceedsIsCorrected) {
  Utilization u{.flops_per_token = 1e6, .ranks = 2, .peak_flops = {}, .gemm_flops = 1e9};
  u.Correct(1000);
  EXPECT_DOUBLE_EQ(*u.GemmShare(1000), 0.5);
  u.Correct(10000);
  EXPECT_DOUBLE_EQ(*u.GemmShare(10000), 1);
  EXPECT_EQ(u.Describe(2500), "25% of GEMM");
  u.Correct(0);
  EXPECT_DOUBLE_EQ(*u.gemm_flops, 5e9);
  u.gemm_flops = {};
  u.Correct(1e9);  // nothing was measured
  EXPECT_EQ(u.gemm_flops, std::nullopt);
}

TEST(Utilization, ProductsAreMeasuredAndTheirMemoryFreed) {
  Allocator& allocator = GetAllocator(kCpu);
  const int64_t live = allocator.stats().live_bytes;
  const Utilization u = MeasureUtilization(kCpu, "fp32", 2, 1e6);
  EXPECT_EQ(u.peak_flops, std::nullopt) << "a CPU has no datasheet peak";
  ASSERT_TRUE(u.gemm_flops.has_value());
  // Bounds for anything from an old core to a large server.
  EXPECT_GT(*u.gemm_flops, 1e8);
  EXPECT_LT(*u.gemm_flops, 1e15);
  EXPECT_EQ(allocator.stats().live_bytes, live);
  EXPECT_EQ(allocator.stats().peak_bytes, live);
  if (cuda::Simulated()) {
    EXPECT_EQ(MeasureGemmFlops(Device{DeviceType::kCuda, 0}, "fp32"), std::nullopt);
  }
}

}  // namespace
}  // namespace lockstep::models
