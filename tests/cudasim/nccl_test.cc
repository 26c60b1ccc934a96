// The stand-in for NCCL: ranks as threads and as processes.
#include "nccl.h"

#include <gmock/gmock-matchers.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <thread>

#include "tests/cudasim/support.h"

extern char** environ;

#define NCCL_OK(call) ASSERT_EQ(call, ncclSuccess)

namespace cudasim_test {
namespace {

constexpr int kDevices = 4;
// Runs before the simulator reads its settings.
const int kSetDevices = setenv("CUDASIM_DEVICES", "4", 1);

using Body = std::function<void(int rank, ncclComm_t comm, cudaStream_t stream)>;

// Runs `body` on a thread per rank, each with its device, communicator and stream.
void RunRanks(int ranks, const Body& body) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CUDA_OK(cudaSetDevice(rank));
      ncclComm_t comm = nullptr;
      NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
      cudaStream_t stream = nullptr;
      CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      body(rank, comm, stream);
      CUDA_OK(cudaStreamSynchronize(stream));
      NCCL_OK(ncclCommDestroy(comm));
      CUDA_OK(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

float Value(int rank, size_t i) { return static_cast<float>(rank * 10 + static_cast<int>(i % 7)); }

std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

TEST(NcclTest, EveryCollective) {
  for (int ranks = 1; ranks <= kDevices; ++ranks) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{100003}}) {
      RunRanks(ranks, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
        const size_t all = count * static_cast<size_t>(ranks);
        float* const x = Upload(Values(rank, std::max<size_t>(all, 1)));
        float* const y = NewOnDevice<float>(std::max<size_t>(all, 1));
        const auto sum = [&](size_t i) {
          float total = 0;
          for (int r = 0; r < ranks; ++r) total += Value(r, i);
          return total;
        };
        const auto read = [&](size_t n) {
          EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
          return n == 0 ? std::vector<float>() : Download(y, n);
        };
        NCCL_OK(ncclAllReduce(x, y, count, ncclFloat32, ncclSum, comm, stream));
        auto result = read(count);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(result[i], sum(i));
        NCCL_OK(ncclAllReduce(x, y, count, ncclFloat32, ncclMax, comm, stream));
        result = read(count);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(result[i], Value(ranks - 1, i));
        NCCL_OK(ncclReduceScatter(x, y, count, ncclFloat32, ncclSum, comm, stream));
        result = read(count);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(result[i], sum(rank * count + i));
        NCCL_OK(ncclAllGather(x, y, count, ncclFloat32, comm, stream));
        result = read(all);
        for (size_t i = 0; i < all; ++i) ASSERT_EQ(result[i], Value(i / count, i % count));
        const int root = ranks - 1;
        NCCL_OK(ncclBroadcast(x, y, count, ncclFloat32, root, comm, stream));
        result = read(count);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(result[i], Value(root, i));
        CUDA_OK(cudaMemsetAsync(y, 0, std::max<size_t>(all, 1) * 4, stream));
        NCCL_OK(ncclReduce(x, y, count, ncclFloat32, ncclAvg, root, comm, stream));
        result = read(count);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_FLOAT_EQ(result[i], rank == root ? sum(i) / static_cast<float>(ranks) : 0);
        }
        // In place.
        NCCL_OK(ncclAllReduce(x, x, count, ncclFloat32, ncclSum, comm, stream));
        CUDA_OK(cudaMemcpyAsync(y, x, count * 4, cudaMemcpyDeviceToDevice, stream));
        result = read(count);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(result[i], sum(i));
        CUDA_OK(cudaFree(x));
        CUDA_OK(cudaFree(y));
      });
    }
  }
}

template <typename T>
void ExpectReduced(ncclDataType_t type, const std::vector<T>& of_rank_0,
                   const std::vector<T>& of_rank_1, ncclRedOp_t op,
                   const std::vector<T>& expected) {
  RunRanks(2, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
    T* const x = Upload(rank == 0 ? of_rank_0 : of_rank_1);
    NCCL_OK(ncclAllReduce(x, x, expected.size(), type, op, comm, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(Download(x, expected.size()), expected);
    CUDA_OK(cudaFree(x));
  });
}

TEST(NcclTest, EveryType) {
  ExpectReduced<int8_t>(ncclInt8, {100, -5}, {100, 3}, ncclSum, {-56, -2});
  ExpectReduced<uint8_t>(ncclUint8, {100, 5}, {100, 3}, ncclMin, {100, 3});
  ExpectReduced<int32_t>(ncclInt32, {7, -8}, {3, 4}, ncclProd, {21, -32});
  ExpectReduced<uint32_t>(ncclUint32, {7, 8}, {3, 4}, ncclAvg, {5, 6});
  ExpectReduced<int64_t>(ncclInt64, {int64_t{1} << 40}, {1}, ncclSum, {(int64_t{1} << 40) + 1});
  ExpectReduced<uint64_t>(ncclUint64, {5}, {9}, ncclMax, {9});
  ExpectReduced<double>(ncclFloat64, {1.5}, {1e-9}, ncclSum, {1.5 + 1e-9});
  // 1 + 2^-9 is not a bf16: it is rounded to even after each addition.
  ExpectReduced<uint16_t>(ncclBfloat16, {0x3f80, 0x4000}, {0x3b00, 0x4040}, ncclSum,
                          {0x3f80, 0x40a0});
  ExpectReduced<uint16_t>(ncclFloat16, {0x3c00}, {0x4000}, ncclSum, {0x4200});
}

TEST(NcclTest, SendsAndReceivesInGroups) {
  RunRanks(3, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    // An all-to-all that includes the rank itself; large enough to fill the sockets' buffers.
    constexpr size_t kCount = 300000;
    float* const x = Upload(Values(rank, 3 * kCount));
    float* const y = NewOnDevice<float>(3 * kCount);
    NCCL_OK(ncclGroupStart());
    for (int peer = 0; peer < 3; ++peer) {
      NCCL_OK(ncclSend(x + peer * kCount, kCount, ncclFloat32, peer, comm, stream));
      NCCL_OK(ncclRecv(y + peer * kCount, kCount, ncclFloat32, peer, comm, stream));
    }
    NCCL_OK(ncclGroupEnd());
    CUDA_OK(cudaStreamSynchronize(stream));
    const auto result = Download(y, 3 * kCount);
    for (size_t i = 0; i < 3 * kCount; ++i) {
      ASSERT_EQ(result[i], Value(static_cast<int>(i / kCount), rank * kCount + i % kCount));
    }
    CUDA_OK(cudaFree(x));
    CUDA_OK(cudaFree(y));
  });
}

TEST(NcclTest, SumsInAnOrderThatDependsOnThePosition) {
  std::vector<float> results[2];
  for (auto& result : results) {
    RunRanks(3, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
      const float mine[] = {1e8f, -1e8f, 1.0f};
      float* const x = Upload(std::vector<float>(6, mine[rank]));
      NCCL_OK(ncclAllReduce(x, x, 6, ncclFloat32, ncclSum, comm, stream));
      CUDA_OK(cudaStreamSynchronize(stream));
      if (rank == 0) result = Download(x, 6);
      CUDA_OK(cudaFree(x));
    });
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_THAT(results[0], testing::Contains(0.0f));
  EXPECT_THAT(results[0], testing::Contains(1.0f));
}

TEST(NcclTest, OneThreadDrivesAllDevices) {
  ncclComm_t comms[2];
  NCCL_OK(ncclCommInitAll(comms, 2, nullptr));
  float* x[2];
  cudaStream_t streams[2];
  for (int i = 0; i < 2; ++i) {
    int value = -1;
    NCCL_OK(ncclCommUserRank(comms[i], &value));
    EXPECT_EQ(value, i);
    NCCL_OK(ncclCommCuDevice(comms[i], &value));
    EXPECT_EQ(value, i);
    NCCL_OK(ncclCommCount(comms[i], &value));
    EXPECT_EQ(value, 2);
    CUDA_OK(cudaSetDevice(i));
    CUDA_OK(cudaStreamCreate(&streams[i]));
    x[i] = Upload<float>({1.0f + static_cast<float>(i)});
  }
  NCCL_OK(ncclGroupStart());
  for (int i = 0; i < 2; ++i) {
    CUDA_OK(cudaSetDevice(i));
    NCCL_OK(ncclAllReduce(x[i], x[i], 1, ncclFloat32, ncclSum, comms[i], streams[i]));
  }
  NCCL_OK(ncclGroupEnd());
  for (int i = 0; i < 2; ++i) {
    CUDA_OK(cudaSetDevice(i));
    CUDA_OK(cudaStreamSynchronize(streams[i]));
    EXPECT_EQ(Download(x[i], 1)[0], 3.0f);
    CUDA_OK(cudaFree(x[i]));
    CUDA_OK(cudaStreamDestroy(streams[i]));
    NCCL_OK(ncclCommDestroy(comms[i]));
  }
  CUDA_OK(cudaSetDevice(0));
  const int twice[] = {0, 0};
  EXPECT_EQ(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
}

TEST(NcclTest, IsAsynchronousAndCanBeCaptured) {
  RunRanks(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    float* const x = Upload<float>({1});
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    NCCL_OK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, stream));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaGraphInstantiate(&exec, graph));
    // Rank 1 is late; rank 0 continues meanwhile.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (int i = 0; i < 3; ++i) {
      CUDA_OK(cudaGraphLaunch(exec, stream));
    }
    if (rank == 0) {
      EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(Download(x, 1)[0], 8.0f);
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(cudaFree(x));
  });
}

TEST(NcclTest, Splits) {
  RunRanks(4, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    // Even and odd ranks, in reverse; rank 3 stays out.
    ncclComm_t part = nullptr;
    NCCL_OK(ncclCommSplit(comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : rank % 2, -rank, &part, nullptr));
    if (rank == 3) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    int value = -1;
    NCCL_OK(ncclCommUserRank(part, &value));
    EXPECT_EQ(value, rank == 0 ? 1 : 0);
    float* const x = Upload<float>({static_cast<float>(rank + 1)});
    NCCL_OK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, part, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(Download(x, 1)[0], rank == 1 ? 2.0f : 4.0f);
    NCCL_OK(ncclCommFinalize(part));
    NCCL_OK(ncclCommDestroy(part));
    CUDA_OK(cudaFree(x));
  });
}

// A collective that its peer never joins, or whose peer leaves, hangs until it is aborted.
TEST(NcclTest, AbortEndsAHungCollective) {
  for (const bool peer_leaves : {false, true}) {
    ncclComm_t comms[2];
    NCCL_OK(ncclCommInitAll(comms, 2, nullptr));
    cudaStream_t stream = nullptr;
    CUDA_OK(cudaStreamCreate(&stream));
    float* const x = Upload<float>({1});
    NCCL_OK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comms[0], stream));
    ncclResult_t state = ncclInternalError;
    NCCL_OK(ncclCommGetAsyncError(comms[0], &state));
    EXPECT_EQ(state, ncclSuccess);
    NCCL_OK(peer_leaves ? ncclCommDestroy(comms[1]) : ncclSuccess);
    while (peer_leaves && state == ncclSuccess) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      NCCL_OK(ncclCommGetAsyncError(comms[0], &state));
    }
    EXPECT_EQ(state, peer_leaves ? ncclRemoteError : ncclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    NCCL_OK(ncclCommAbort(comms[0]));
    CUDA_OK(cudaStreamSynchronize(stream));
    if (!peer_leaves) {
      NCCL_OK(ncclCommAbort(comms[1]));
    }
    CUDA_OK(cudaFree(x));
    CUDA_OK(cudaStreamDestroy(stream));
  }
  cudaGetLastError();
}

TEST(NcclTest, CreatesWithoutBlocking) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[2];
  ncclResult_t state = ncclSuccess;
  CUDA_OK(cudaSetDevice(0));
  EXPECT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
  NCCL_OK(ncclCommGetAsyncError(comms[0], &state));
  EXPECT_EQ(state, ncclInProgress);
  float* const x = Upload<float>({1});
  EXPECT_EQ(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comms[0], nullptr), ncclInvalidUsage);
  CUDA_OK(cudaSetDevice(1));
  EXPECT_EQ(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config), ncclInProgress);
  CUDA_OK(cudaSetDevice(0));
  for (const ncclComm_t comm : comms) {
    do {
      NCCL_OK(ncclCommGetAsyncError(comm, &state));
    } while (state == ncclInProgress);
    EXPECT_EQ(state, ncclSuccess);
    NCCL_OK(ncclCommDestroy(comm));
  }
  CUDA_OK(cudaFree(x));
}

TEST(NcclTest, RefusesBadArguments) {
  RunRanks(1, [](int, ncclComm_t comm, cudaStream_t stream) {
    float* const x = Upload<float>({1});
    float host = 0;
    EXPECT_EQ(ncclAllReduce(x, x, 1, ncclNumTypes, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(x, x, 1, ncclFloat32, ncclNumOps, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(x, x, 1, ncclFloat32, 1, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(&host, x, 1, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comm), testing::HasSubstr("not in device memory"));
    EXPECT_EQ(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, nullptr, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    CUDA_OK(cudaFree(x));
  });
  ncclUniqueId id = {};
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument);
  NCCL_OK(ncclCommDestroy(comm));
}

TEST(NcclDeathTest, RanksThatDisagreeAreReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto disagree = [] {
    RunRanks(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
      float* const x = Upload<float>({1, 2});
      ncclAllReduce(x, x, rank == 0 ? 1 : 2, ncclFloat32, ncclSum, comm, stream);
      cudaStreamSynchronize(stream);
    });
  };
  EXPECT_DEATH(disagree(), "NCCL ranks disagree.*all_reduce of [12] f32 sum .*but rank");
}

// Ranks as processes: this program starts itself again.
TEST(NcclProcessTest, Child) {
  const char* const text = std::getenv("NCCL_TEST_ID");
  if (text == nullptr) GTEST_SKIP() << "the other test starts it";
  ncclUniqueId id = {};
  for (size_t i = 0; i < sizeof(id); ++i) {
    id.internal[i] = static_cast<char>(std::stoi(std::string(text).substr(2 * i, 2), nullptr, 16));
  }
  const int rank = std::atoi(std::getenv("NCCL_TEST_RANK"));
  ncclComm_t comm = nullptr;
  NCCL_OK(ncclCommInitRank(&comm, 3, id, rank));
  float* const x = Upload(Values(rank, 1000));
  NCCL_OK(ncclAllReduce(x, x, 1000, ncclFloat32, ncclSum, comm, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  const auto result = Download(x, 1000);
  for (size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(result[i], Value(0, i) + Value(1, i) + Value(2, i));
  }
  CUDA_OK(cudaFree(x));
  NCCL_OK(ncclCommDestroy(comm));
}

TEST(NcclProcessTest, RanksAreProcesses) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::string text;
  for (const char byte : id.internal) {
    char hex[4];
    std::snprintf(hex, sizeof(hex), "%02x", static_cast<unsigned char>(byte));
    text += hex;
  }
  setenv("NCCL_TEST_ID", text.c_str(), 1);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    setenv("NCCL_TEST_RANK", std::to_string(rank).c_str(), 1);
    std::string filter = "--gtest_filter=NcclProcessTest.Child";
    std::string name = "child";
    char* arguments[] = {name.data(), filter.data(), nullptr};
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ), 0);
    children.push_back(child);
  }
  unsetenv("NCCL_TEST_ID");
  for (const pid_t child : children) {
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace cudasim_test
