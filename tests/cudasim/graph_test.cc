// Stream capture and graphs.
#include <gmock/gmock-matchers.h>

#include <thread>

#include "tests/cudasim/stream_kernels.h"
#include "tests/cudasim/support.h"

namespace cudasim_test {
namespace {

class GraphTest : public testing::Test {
 protected:
  void SetUp() override {
    CUDA_OK(cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking));
    CUDA_OK(cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    CUDA_OK(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
    x_ = Upload<int>({0, 0});
  }
  void TearDown() override {
    CUDA_OK(cudaDeviceSynchronize());
    for (const cudaStream_t stream : {a_, b_}) CUDA_OK(cudaStreamDestroy(stream));
    for (const cudaEvent_t event : {fork_, join_}) CUDA_OK(cudaEventDestroy(event));
    CUDA_OK(cudaFree(x_));
    cudaGetLastError();
  }
  cudaError_t Begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    return cudaStreamBeginCapture(a_, mode);
  }
  cudaError_t Add(cudaStream_t stream, int value) { return lockstep::RunAdd(stream, x_, value); }
  // Ends a capture that must have failed.
  void ExpectEnd(cudaError_t error) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph), error);
    EXPECT_EQ(graph, nullptr);
    cudaStreamCaptureStatus status;
    CUDA_OK(cudaStreamIsCapturing(a_, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  }
  cudaStream_t a_ = nullptr;
  cudaStream_t b_ = nullptr;
  cudaEvent_t fork_ = nullptr;
  cudaEvent_t join_ = nullptr;
  int* x_ = nullptr;
};

TEST_F(GraphTest, ReplaysWhatWasCaptured) {
  CUDA_OK(Begin());
  cudaStreamCaptureStatus status;
  CUDA_OK(cudaStreamIsCapturing(a_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  CUDA_OK(Add(a_, 1));
  CUDA_OK(Add(a_, 10));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(a_, &graph));
  EXPECT_EQ(Download(x_, 2), (std::vector<int>{0, 0}));  // Captured, not run.
  size_t nodes = 0;
  CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  size_t edges = 0;
  CUDA_OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 1u);
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaGraphInstantiate(&exec, graph));
  CUDA_OK(cudaGraphDestroy(graph));
  for (int i = 0; i < 3; ++i) CUDA_OK(cudaGraphLaunch(exec, a_));
  CUDA_OK(cudaStreamSynchronize(a_));
  EXPECT_EQ(Download(x_, 2), (std::vector<int>{33, 33}));
  // Also in another stream, after the earlier launches.
  CUDA_OK(cudaGraphLaunch(exec, b_));
  CUDA_OK(cudaStreamSynchronize(b_));
  EXPECT_EQ(Download(x_, 2), (std::vector<int>{44, 44}));
  CUDA_OK(cudaGraphExecDestroy(exec));
  EXPECT_EQ(cudaGraphLaunch(exec, a_), cudaErrorInvalidValue);
}

TEST_F(GraphTest, ForksAndJoins) {
  int* const y = Upload<int>({5, 5});
  for (const int delay : {0, 60000}) {
    SettingsGuard settings;
    settings->delay_ms = delay;
    CUDA_OK(Begin());
    CUDA_OK(Add(a_, 1));
    CUDA_OK(cudaEventRecord(fork_, a_));
    CUDA_OK(cudaStreamWaitEvent(b_, fork_));
    CUDA_OK(cudaMemcpyAsync(y, x_, 8, cudaMemcpyDeviceToDevice, b_));
    CUDA_OK(cudaEventRecord(join_, b_));
    CUDA_OK(cudaStreamWaitEvent(a_, join_));
    CUDA_OK(Add(a_, 1));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(a_, &graph));
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaGraphInstantiate(&exec, graph));
    CUDA_OK(cudaMemset(x_, 0, 8));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaGraphLaunch(exec, a_));
    CUDA_OK(cudaStreamSynchronize(a_));
    EXPECT_EQ(Download(y, 2), (std::vector<int>{1, 1}));
    EXPECT_EQ(Download(x_, 2), (std::vector<int>{2, 2}));
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
  }
  CUDA_OK(cudaFree(y));
}

TEST_F(GraphTest, CopiesFromWhereTheHostWritesLater) {
  int* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, 8));
  CUDA_OK(Begin());
  CUDA_OK(cudaMemcpyAsync(x_, pinned, 8, cudaMemcpyHostToDevice, a_));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(a_, &graph));
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaGraphInstantiate(&exec, graph));
  pinned[0] = 3;
  pinned[1] = 4;
  CUDA_OK(cudaGraphLaunch(exec, a_));
  CUDA_OK(cudaStreamSynchronize(a_));
  EXPECT_EQ(Download(x_, 2), (std::vector<int>{3, 4}));
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaFreeHost(pinned));
}

TEST_F(GraphTest, UpdatesParametersButNotTopology) {
  cudaGraph_t graphs[3];
  for (int i = 0; i < 3; ++i) {
    CUDA_OK(Begin());
    CUDA_OK(Add(a_, i + 1));
    if (i == 2) {
      CUDA_OK(cudaMemsetAsync(x_, 0, 8, a_));
    }
    CUDA_OK(cudaStreamEndCapture(a_, &graphs[i]));
  }
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaGraphInstantiate(&exec, graphs[0]));
  cudaGraphExecUpdateResultInfo info;
  CUDA_OK(cudaGraphExecUpdate(exec, graphs[1], &info));
  EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
  EXPECT_EQ(cudaGraphExecUpdate(exec, graphs[2], &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  CUDA_OK(cudaGraphLaunch(exec, a_));
  CUDA_OK(cudaStreamSynchronize(a_));
  EXPECT_EQ(Download(x_, 2), (std::vector<int>{2, 2}));
  CUDA_OK(cudaGraphExecDestroy(exec));
  for (const cudaGraph_t graph : graphs) CUDA_OK(cudaGraphDestroy(graph));
}

// set x, then add 1 and copy to the host, and beside that a host function.
TEST_F(GraphTest, NodesAddedByHandRunInTheirOrder) {
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t set, add, copy, call, end;
  // Two elements of four bytes, and of two.
  cudaMemsetParams memset{x_, 0, 0x01020304, 4, 2, 1};
  CUDA_OK(cudaGraphAddMemsetNode(&set, graph, nullptr, 0, &memset));
  int value = 1;
  void* arguments[] = {&x_, &value};
  cudaKernelNodeParams kernel{};
  kernel.func = const_cast<void*>(lockstep::AddKernelFunction());
  kernel.gridDim = 1;
  kernel.blockDim = 2;
  kernel.kernelParams = arguments;
  CUDA_OK(cudaGraphAddKernelNode(&add, graph, &set, 1, &kernel));
  int* host = nullptr;
  CUDA_OK(cudaMallocHost(&host, 8));
  CUDA_OK(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, host, x_, 8, cudaMemcpyDeviceToHost));
  CUDA_OK(cudaGraphAddDependencies(graph, &add, &copy, nullptr, 1));
  int calls = 0;
  const cudaHostNodeParams function{[](void* count) { ++*static_cast<int*>(count); }, &calls};
  CUDA_OK(cudaGraphAddHostNode(&call, graph, nullptr, 0, &function));
  const cudaGraphNode_t both[] = {copy, call};
  CUDA_OK(cudaGraphAddEmptyNode(&end, graph, both, 2));
  cudaGraph_t clone = nullptr;
  CUDA_OK(cudaGraphClone(&clone, graph));
  size_t nodes = 0, edges = 0;
  CUDA_OK(cudaGraphGetNodes(clone, nullptr, &nodes));
  CUDA_OK(cudaGraphGetEdges(clone, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(nodes, 5u);
  EXPECT_EQ(edges, 4u);

  for (const int delay : {0, 60000}) {
    SettingsGuard settings;
    settings->delay_ms = delay;
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaGraphInstantiate(&exec, clone));
    CUDA_OK(cudaGraphLaunch(exec, a_));
    CUDA_OK(cudaStreamSynchronize(a_));
    EXPECT_EQ(host[0], 0x01020305);
    EXPECT_EQ(host[1], 0x01020305);
    // The arguments were copied when the node was added; those of a graph in use can be replaced.
    value = 5;
    memset = {x_, 0, 0x0007, 2, 4, 1};
    CUDA_OK(cudaGraphExecKernelNodeSetParams(exec, add, &kernel));
    CUDA_OK(cudaGraphExecMemsetNodeSetParams(exec, set, &memset));
    EXPECT_EQ(cudaGraphExecMemsetNodeSetParams(exec, add, &memset), cudaErrorInvalidValue);
    CUDA_OK(cudaGraphLaunch(exec, a_));
    CUDA_OK(cudaStreamSynchronize(a_));
    EXPECT_EQ(host[0], 0x0007000c);
    EXPECT_EQ(host[1], 0x0007000c);
    CUDA_OK(cudaGraphExecDestroy(exec));
  }
  EXPECT_EQ(calls, 4);

  CUDA_OK(cudaGraphAddDependencies(graph, &end, &set, nullptr, 1));
  cudaGraphExec_t circle = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&circle, graph), cudaErrorInvalidValue);
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaGraphDestroy(clone));
  CUDA_OK(cudaFreeHost(host));
}

TEST_F(GraphTest, CapturesIntoAGraphThatExists) {
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t first;
  const cudaMemsetParams memset{x_, 0, 7, 4, 2, 1};
  CUDA_OK(cudaGraphAddMemsetNode(&first, graph, nullptr, 0, &memset));
  CUDA_OK(
      cudaStreamBeginCaptureToGraph(a_, graph, &first, nullptr, 1, cudaStreamCaptureModeGlobal));
  CUDA_OK(Add(a_, 1));
  cudaGraph_t same = nullptr;
  CUDA_OK(cudaStreamEndCapture(a_, &same));
  EXPECT_EQ(same, graph);
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaGraphInstantiate(&exec, graph));
  CUDA_OK(cudaGraphLaunch(exec, a_));
  CUDA_OK(cudaStreamSynchronize(a_));
  EXPECT_EQ(Download(x_, 2), (std::vector<int>{8, 8}));
  CUDA_OK(cudaGraphExecDestroy(exec));
  // A capture that fails leaves the graph to its owner.
  CUDA_OK(
      cudaStreamBeginCaptureToGraph(a_, graph, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaStreamQuery(a_), cudaErrorStreamCaptureUnsupported);
  ExpectEnd(cudaErrorStreamCaptureInvalidated);
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(GraphTest, WaitingInvalidatesTheCapture) {
  const auto break_with = [&](cudaError_t error, cudaError_t expected) {
    EXPECT_EQ(error, expected);
    EXPECT_EQ(Add(a_, 1), cudaErrorStreamCaptureInvalidated);
    ExpectEnd(cudaErrorStreamCaptureInvalidated);
  };
  CUDA_OK(Begin());
  break_with(cudaStreamSynchronize(a_), cudaErrorStreamCaptureUnsupported);
  CUDA_OK(Begin());
  break_with(cudaStreamQuery(a_), cudaErrorStreamCaptureUnsupported);
  CUDA_OK(Begin());
  break_with(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  CUDA_OK(Begin());
  CUDA_OK(cudaEventRecord(fork_, a_));
  break_with(cudaEventSynchronize(fork_), cudaErrorCapturedEvent);
  CUDA_OK(Begin());
  void* memory = nullptr;
  break_with(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported);
  CUDA_OK(Begin());
  break_with(cudaMallocAsync(&memory, 8, a_), cudaErrorStreamCaptureUnsupported);
  CUDA_OK(Begin());
  int host[2];
  break_with(cudaMemcpy(host, x_, 8, cudaMemcpyDeviceToHost), cudaErrorStreamCaptureUnsupported);
}

TEST_F(GraphTest, RelaxedCaptureAllowsUnsafeCalls) {
  CUDA_OK(Begin(cudaStreamCaptureModeRelaxed));
  void* memory = nullptr;
  CUDA_OK(cudaMalloc(&memory, 8));
  CUDA_OK(Add(a_, 1));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(a_, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaFree(memory));
}

TEST_F(GraphTest, ModesReachOtherThreads) {
  const auto allocate_elsewhere = [] {
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      void* memory = nullptr;
      error = cudaMalloc(&memory, 8);
      if (error == cudaSuccess) cudaFree(memory);
    }).join();
    return error;
  };
  cudaGraph_t graph = nullptr;
  CUDA_OK(Begin(cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(allocate_elsewhere(), cudaSuccess);
  CUDA_OK(cudaStreamEndCapture(a_, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(Begin(cudaStreamCaptureModeGlobal));
  EXPECT_EQ(allocate_elsewhere(), cudaErrorStreamCaptureUnsupported);
  ExpectEnd(cudaErrorStreamCaptureInvalidated);
  // A thread may exempt itself.
  CUDA_OK(Begin(cudaStreamCaptureModeGlobal));
  auto mode = cudaStreamCaptureModeRelaxed;
  CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  void* memory = nullptr;
  CUDA_OK(cudaMalloc(&memory, 8));
  CUDA_OK(cudaFree(memory));
  CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  CUDA_OK(cudaStreamEndCapture(a_, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(GraphTest, LegacyStreamAndBlockingCapturesExcludeEachOther) {
  cudaStream_t blocking = nullptr;
  CUDA_OK(cudaStreamCreate(&blocking));
  CUDA_OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(Add(nullptr, 1), cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  CUDA_OK(cudaStreamDestroy(blocking));
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed),
            cudaErrorStreamCaptureUnsupported);
}

TEST_F(GraphTest, ForksMustJoin) {
  CUDA_OK(Begin());
  CUDA_OK(cudaEventRecord(fork_, a_));
  CUDA_OK(cudaStreamWaitEvent(b_, fork_));
  CUDA_OK(Add(b_, 1));
  ExpectEnd(cudaErrorStreamCaptureUnjoined);
  cudaStreamCaptureStatus status;
  CUDA_OK(cudaStreamIsCapturing(b_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

TEST_F(GraphTest, CapturesDoNotMixWithOtherWork) {
  // Work from before the capture.
  CUDA_OK(cudaEventRecord(fork_, b_));
  CUDA_OK(Begin());
  EXPECT_EQ(cudaStreamWaitEvent(a_, fork_), cudaErrorStreamCaptureIsolation);
  ExpectEnd(cudaErrorStreamCaptureInvalidated);
  // Two captures.
  CUDA_OK(Begin());
  CUDA_OK(cudaStreamBeginCapture(b_, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaEventRecord(fork_, b_));
  EXPECT_EQ(cudaStreamWaitEvent(a_, fork_), cudaErrorStreamCaptureMerge);
  ExpectEnd(cudaErrorStreamCaptureInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(b_, &graph), cudaErrorStreamCaptureInvalidated);
  // Ends elsewhere.
  CUDA_OK(Begin());
  CUDA_OK(cudaEventRecord(fork_, a_));
  CUDA_OK(cudaStreamWaitEvent(b_, fork_));
  EXPECT_EQ(cudaStreamEndCapture(b_, &graph), cudaErrorStreamCaptureUnmatched);
  ExpectEnd(cudaErrorStreamCaptureInvalidated);
  CUDA_OK(Begin());
  std::thread([&] {
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureWrongThread);
  }).join();
  CUDA_OK(cudaStreamEndCapture(a_, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorIllegalState);
  CUDA_OK(Begin());
  EXPECT_EQ(Begin(), cudaErrorIllegalState);
  CUDA_OK(cudaStreamEndCapture(a_, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace cudasim_test
