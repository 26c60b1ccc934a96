// The effect of LOCKSTEP_CUDA_POISON, which the BUILD file sets, on fresh memory.
#include <algorithm>
#include <set>

#include "core/tensor.h"
#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

using PoisonTest = GpuTest;

constexpr int64_t kBytes = 1001;

std::vector<uint8_t> Fresh() {
  return Tensor::Empty({kBytes}, DType::kU8, kGpu).To(kCpu).ToVector<uint8_t>();
}

TEST_F(PoisonTest, FreshMemoryHoldsNaNsAndOtherBytes) {
  std::multiset<uint8_t> bytes;
  for (int i = 0; i < 64; ++i) {
    const std::vector<uint8_t> block = Fresh();
    EXPECT_EQ(std::count(block.begin(), block.end(), block[0]), kBytes);
    bytes.insert(block[0]);
  }
  EXPECT_GT(bytes.count(0xff), 16u) << "half of the blocks hold NaNs";
  EXPECT_LT(bytes.count(0xff), 48u);
  EXPECT_GT(std::set(bytes.begin(), bytes.end()).size(), 10u);
}

// What rounding adds to a block is poisoned, too, so that reads beyond a tensor's end show.
TEST_F(PoisonTest, IsFilledToTheEndOfTheBlock) {
  constexpr size_t kBlock = 1024;
  std::vector<Tensor> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(Tensor::Empty({kBytes}, DType::kU8, kGpu));
    Synchronize(CurrentStream(kGpu));
    std::vector<uint8_t> block(kBlock);
    LS_CUDA(cudaMemcpy(block.data(), held.back().raw_data(), kBlock, cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::count(block.begin(), block.end(), block[0]), static_cast<int64_t>(kBlock));
  }
}

// Reused memory is poisoned after its last use.
TEST_F(PoisonTest, IsFilledAnewInTheOrderOfTheStream) {
  const void* first = nullptr;
  int repeated = 0;
  for (int i = 0; i < 16; ++i) {
    Tensor used = Tensor::Empty({kBytes}, DType::kU8, kGpu);
    if (first == nullptr) first = used.raw_data();
    repeated += used.raw_data() == first;
    const std::vector<uint8_t> before = used.To(kCpu).ToVector<uint8_t>();
    used.Fill(before[0] ^ 1);
    used = Tensor();
    const std::vector<uint8_t> after = Fresh();
    EXPECT_EQ(std::count(after.begin(), after.end(), after[0]), kBytes);
    EXPECT_NE(after[0], before[0] ^ 1) << "in round " << i << " (by chance once in 500)";
  }
  EXPECT_GT(repeated, 1) << "the allocator gave the same memory again";
}

}  // namespace
}  // namespace lockstep::cuda
