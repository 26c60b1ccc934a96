#include <gmock/gmock.h>

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

TEST_F(GraphTest, AHandleOfCublasLtPerDevice) {
  EXPECT_EQ(BlasLtHandle(kGpu), BlasLtHandle(kGpu));
  if (DeviceCount() > 1) {
    EXPECT_NE(BlasLtHandle(kGpu), BlasLtHandle(kSecondGpu));
  }
}

}  // namespace
}  // namespace lockstep::cuda
