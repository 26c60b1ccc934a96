#include <gmock/gmock-matchers.h>

#include "core/allocator.h"
#include "core/cuda/graph_space.h"
#include "core/cuda/handles.h"
#include "core/tensor.h"
#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

using GraphTest = GpuTest;

TEST_F(GraphTest, RunsWhatWasCapturedEachTimeItIsLaunched) {
  const OwnedStream stream(kGpu);
  const StreamGuard guard(stream);
  const Tensor x = Tensor::Zeros({4}, DType::kF32, kGpu), y = Tensor::Zeros({4}, DType::kF32, kGpu);
  Graph graph = Graph::Capture(stream, [&] { y.CopyFrom(x); });
  EXPECT_TRUE(graph.defined());
  x.Fill(3);
  EXPECT_EQ(y.ToVector<float>(), std::vector<float>(4, 0)) << "captured, not run";
  graph.Launch(stream);
  EXPECT_EQ(y.ToVector<float>(), std::vector<float>(4, 3));
  x.Fill(5);
  graph.Launch(stream);
  EXPECT_EQ(y.ToVector<float>(), std::vector<float>(4, 5));
}

TEST_F(GraphTest, AnErrorWhileCapturingLeavesTheStreamUsable) {
  const OwnedStream stream(kGpu);
  EXPECT_THROW(Graph::Capture(stream, [] { throw ArgumentError("as a wrong shape would"); }),
               ArgumentError);
  const StreamGuard guard(stream);
  EXPECT_EQ(Tensor::Full({2}, 1, DType::kF32, kGpu).ToVector<float>(), std::vector<float>(2, 1));
}

TEST_F(GraphTest, RefusesTheDefaultStreamAndEmptyGraphs) {
  EXPECT_THROW(Graph::Capture(CurrentStream(kGpu), [] {}), ArgumentError);
  EXPECT_THROW(Graph().Launch(CurrentStream(kGpu)), ArgumentError);
}

// A graph's own tensors are dead after its capture, but nobody else may get their memory.
TEST_F(GraphTest, MemoryOfASpaceIsNobodyElses) {
  if (!GraphSpace::Supported(kGpu)) GTEST_SKIP() << "no caching allocator in this build";
  const Tensor x = Tensor::Full({1000}, 3, DType::kF32, kGpu), y = Tensor::EmptyLike(x);
  Allocator& allocator = GetAllocator(kGpu);
  const int64_t live = allocator.stats().live_bytes, reserved = allocator.stats().reserved_bytes;
  {
    GraphSpace space(kGpu);
    const Graph graph = space.Capture([&] {
      const Tensor copy = x.Clone();  // lives only within the graph
      y.CopyFrom(copy);
    });
    EXPECT_GE(allocator.stats().live_bytes, live + x.bytes());
    allocator.Trim();
    std::vector<Tensor> others;
    for (int i = 0; i < 20; ++i) others.push_back(Tensor::Full({1000}, i, DType::kF32, kGpu));
    graph.Launch(CurrentStream(kGpu));
    EXPECT_EQ(y.ToVector<float>(), std::vector<float>(1000, 3));
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(others[i].ToVector<float>(), std::vector<float>(1000, static_cast<float>(i)));
    }
  }
  EXPECT_EQ(allocator.stats().live_bytes, live);
  allocator.Trim();
  EXPECT_LE(allocator.stats().reserved_bytes, reserved);
}

TEST_F(GraphTest, ACopyFromTheHostIsNotCaptured) {
  const OwnedStream stream(kGpu);
  const Tensor x = Tensor::Zeros({2}, DType::kF32, kGpu);
  EXPECT_THROW(Graph::Capture(stream, [&] { x.CopyFrom(Tensor::Full({2}, 1, DType::kF32)); }),
               Error);
}

}  // namespace
}  // namespace lockstep::cuda
