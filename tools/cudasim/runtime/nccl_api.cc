// The functions of nccl.h: communicators, groups, enqueueing.
#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "capture.h"
#include "cudasim/hang.h"
#include "cudasim/settings.h"
#include "nccl_comm.h"

struct ncclComm {
  std::shared_ptr<cudasim::runtime::Communicator> inner;
};

namespace cudasim::runtime {
namespace {

using Shared = std::shared_ptr<Communicator>;

struct Pending {
  Shared comm;
  cudaStream_t stream;
  Call call;
};

// The calls that a thread has deferred until the end of its group.
struct Group {
  int depth = 0;
  std::vector<Pending> calls;
  // Meetings of ranks, which must run concurrently.
  std::vector<std::function<ncclResult_t()>> meetings;
  ncclResult_t error = ncclSuccess;
  std::string last_error;
};

Group& GetGroup() {
  thread_local Group group;
  return group;
}

struct Comms {
  std::mutex mutex;
  std::set<ncclComm_t> live;
};

Comms& GetComms() {
  static auto* const comms = new Comms;
  return *comms;
}

ncclResult_t Fail(ncclResult_t result, std::string reason) {
  GetGroup().last_error = std::move(reason);
  return result;
}

Shared Find(ncclComm_t comm) {
  Comms& comms = GetComms();
  const std::lock_guard<std::mutex> guard(comms.mutex);
  return comms.live.count(comm) == 0 ? nullptr : comm->inner;
}

ncclComm_t Add(Shared inner) {
  Comms& comms = GetComms();
  const std::lock_guard<std::mutex> guard(comms.mutex);
  auto* const comm = new ncclComm{std::move(inner)};
  comms.live.insert(comm);
  return comm;
}

Shared Remove(ncclComm_t comm) {
  Comms& comms = GetComms();
  const std::lock_guard<std::mutex> guard(comms.mutex);
  if (comms.live.erase(comm) == 0) return nullptr;
  Shared inner = std::move(comm->inner);
  delete comm;
  return inner;
}

// Runs a meeting now, at the end of the group, or on a thread of its own.
ncclResult_t Meet(const Shared& comm, std::function<ncclResult_t()> meeting) {
  if (!comm->blocking()) {
    std::thread(std::move(meeting)).detach();
    return ncclInProgress;
  }
  if (GetGroup().depth > 0) {
    GetGroup().meetings.push_back(std::move(meeting));
    return ncclSuccess;
  }
  return meeting();
}

ncclResult_t Connect(const Shared& comm, const ncclUniqueId& id) {
  const ncclResult_t result = comm->mesh().Connect(id, comm->device());
  comm->SetStatus(result);
  return result == ncclSuccess ? result : Fail(result, comm->mesh().error());
}

bool IsBlocking(const ncclConfig_t* config) { return config == nullptr || config->blocking != 0; }

ncclResult_t Init(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank, int device,
                  const ncclConfig_t* config) {
  if (comm == nullptr) return Fail(ncclInvalidArgument, "comm is null");
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return Fail(ncclInvalidArgument,
                "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  auto inner = std::make_shared<Communicator>(rank, ranks, device, IsBlocking(config));
  *comm = Add(inner);
  return Meet(inner, [inner, id] { return Connect(inner, id); });
}

// A call's buffer.
struct Buffer {
  const void* address;
  size_t bytes;
  bool write;
};

std::vector<Buffer> BuffersOf(const Call& call, int rank, int ranks) {
  const size_t part = call.count * SizeOf(call.type);
  const size_t all = part * static_cast<size_t>(ranks);
  const bool root = call.root == rank;
  switch (call.kind) {
    case Call::kAllReduce:
      return {{call.send, part, false}, {call.receive, part, true}};
    case Call::kReduce:
      if (!root) return {{call.send, part, false}};
      return {{call.send, part, false}, {call.receive, part, true}};
    case Call::kBroadcast:
      if (!root) return {{call.receive, part, true}};
      return {{call.send, part, false}, {call.receive, part, true}};
    case Call::kReduceScatter:
      return {{call.send, all, false}, {call.receive, part, true}};
    case Call::kAllGather:
      return {{call.send, part, false}, {call.receive, all, true}};
    case Call::kSend:
      return {{call.send, part, false}};
    case Call::kRecv:
      return {{call.receive, part, true}};
  }
  return {};
}

ncclResult_t CheckBuffers(const Call& call, const std::vector<Buffer>& buffers) {
  std::string bug;
  {
    const Lock lock(GetState().mutex);
    for (const Buffer& buffer : buffers) {
      if (buffer.bytes == 0) continue;
      const auto block = FindBlock(buffer.address);
      if (block == nullptr || block->freed) {
        return Fail(ncclInvalidArgument, Describe(call) + ": a buffer is not in device memory");
      }
      if (FindBlock(buffer.address, buffer.bytes) == nullptr) {
        bug = Describe(call) + " goes beyond " + DescribeWithSites(*block);
      }
    }
  }
  if (bug.empty()) return ncclSuccess;
  ReportBug(-1, Bug::kOutOfBounds, bug);
  return Fail(ncclInvalidArgument, bug);
}

// Enqueues a group's calls for one communicator and stream.
ncclResult_t Launch(const Shared& comm, cudaStream_t handle, std::vector<Call> calls) {
  Work work;
  work.type = cudaGraphNodeTypeKernel;
  work.what = "NCCL " + Describe(calls.front());
  for (const Call& call : calls) {
    for (const Buffer& buffer : BuffersOf(call, comm->mesh().rank(), comm->mesh().ranks())) {
      work.ranges.push_back({buffer.address, buffer.bytes, buffer.write});
    }
  }
  work.run = [comm, calls = std::move(calls)] { return comm->Run(calls); };
  Lock lock(GetState().mutex);
  if (Sticky(lock) != cudaSuccess) return Fail(ncclUnhandledCudaError, "the device has failed");
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr) return Fail(ncclInvalidArgument, "not a stream");
  if (stream->device != comm->device()) {
    return Fail(ncclInvalidArgument, "the stream and the communicator belong to different devices");
  }
  // Operations of one communicator run in order, whatever their streams.
  if (stream->capture == nullptr && comm->last != nullptr) work.waits = {comm->last};
  std::shared_ptr<Op> op;
  const cudaError_t error = SubmitLocked(lock, stream, std::move(work), &op);
  if (op != nullptr) comm->last = op;
  return error == cudaSuccess ? ncclSuccess
                              : Fail(ncclUnhandledCudaError, cudaGetErrorString(error));
}

// The calls of a group for one communicator and stream.
struct Batch {
  Shared comm;
  cudaStream_t stream;
  std::vector<Call> calls;
};

// On a thread of its own.
void LaunchLater(const std::vector<Batch>& batches) {
  if (const int most = GetSettings().nccl_launch_us; most > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(std::random_device()() % (most + 1)));
  }
  MayHang("ncclGroupEnd");
  ncclResult_t result = ncclSuccess;
  for (const Batch& batch : batches) {
    if (batch.comm->mesh().aborted()) continue;
    cudaSetDevice(batch.comm->device());
    auto one = static_cast<ncclResult_t>(GetSettings().nccl_launch_result);
    one = one == ncclSuccess ? Launch(batch.comm, batch.stream, batch.calls)
                             : Fail(one, "the launch was made to fail");
    if (one != ncclSuccess) result = one;
  }
  std::set<Shared> comms;
  for (const Batch& batch : batches) comms.insert(batch.comm);
  for (const Shared& comm : comms) comm->EndLaunch(result, GetGroup().last_error);
}

ncclResult_t LaunchAll(std::vector<Batch> batches) {
  const bool later = !batches.empty() && GetSettings().nccl_launch_us >= 0 &&
                     std::none_of(batches.begin(), batches.end(),
                                  [](const Batch& batch) { return batch.comm->blocking(); });
  if (later) {
    for (const Batch& batch : batches) {
      if (!batch.comm->BeginLaunch()) return batch.comm->status();
    }
    std::thread(LaunchLater, std::move(batches)).detach();
    return ncclInProgress;
  }
  ncclResult_t result = ncclSuccess;
  for (const Batch& batch : batches) {
    const ncclResult_t one = Launch(batch.comm, batch.stream, batch.calls);
    if (one != ncclSuccess) result = one;
  }
  return result;
}

ncclResult_t EndGroup() {
  Group& group = GetGroup();
  if (group.depth == 0) return Fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  const auto meetings = std::exchange(group.meetings, {});
  const auto calls = std::exchange(group.calls, {});
  ncclResult_t result = std::exchange(group.error, ncclSuccess);
  std::vector<ncclResult_t> results(meetings.size(), ncclSuccess);
  std::vector<std::string> reasons(meetings.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < meetings.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = meetings[i]();
      reasons[i] = GetGroup().last_error;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i] != ncclSuccess) result = Fail(results[i], reasons[i]);
  }
  if (result != ncclSuccess) return result;
  // Per communicator and stream, in order of the first call.
  std::vector<Batch> batches;
  for (const Pending& pending : calls) {
    auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) {
      return b.comm == pending.comm && b.stream == pending.stream;
    });
    if (batch == batches.end()) {
      batch = batches.insert(batch, {pending.comm, pending.stream, {}});
    }
    batch->calls.push_back(pending.call);
  }
  return LaunchAll(std::move(batches));
}

ncclResult_t Enqueue(ncclComm_t handle, cudaStream_t stream, const Call& call) {
  const auto refuse = [](ncclResult_t result, std::string reason) {
    if (GetGroup().depth > 0) GetGroup().error = result;
    return Fail(result, std::move(reason));
  };
  const Shared comm = Find(handle);
  if (comm == nullptr) return refuse(ncclInvalidArgument, "not a communicator");
  const ncclResult_t status = comm->status();
  if (status == ncclInProgress) {
    return refuse(ncclInvalidUsage, "an earlier call of the communicator is in progress");
  }
  if (status != ncclSuccess || comm->finalized()) {
    return refuse(ncclInvalidUsage, "the communicator has failed or is finalized");
  }
  if (SizeOf(call.type) == 0 || call.op < ncclSum || call.op >= ncclNumOps) {
    return refuse(ncclInvalidArgument, "an unknown type or operation");
  }
  const bool reduces = call.kind == Call::kAllReduce || call.kind == Call::kReduce ||
                       call.kind == Call::kReduceScatter;
  if (reduces && SizeOf(call.type) == 1 && call.type > ncclUint8) {
    return refuse(ncclInvalidArgument, "reductions of fp8 are not simulated");
  }
  if (call.root < 0 || call.root >= comm->mesh().ranks()) {
    return refuse(ncclInvalidArgument, "no rank " + std::to_string(call.root));
  }
  const auto buffers = BuffersOf(call, comm->mesh().rank(), comm->mesh().ranks());
  if (const auto result = CheckBuffers(call, buffers); result != ncclSuccess) {
    return refuse(result, GetGroup().last_error);
  }
  if (GetGroup().depth > 0) {
    GetGroup().calls.push_back({comm, stream, call});
    return ncclSuccess;
  }
  return LaunchAll({{comm, stream, {call}}});
}

void WaitForLast(const Shared& comm) {
  Lock lock(GetState().mutex);
  if (comm->last != nullptr) WaitFor(lock, comm->last);
}

}  // namespace
}  // namespace cudasim::runtime

namespace rt = cudasim::runtime;
using rt::Call;

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  const rt::Shared inner = rt::Find(comm);
  const bool later =
      inner != nullptr && inner->status() != ncclInProgress && !inner->launch_error().empty();
  return later ? inner->launch_error().c_str() : rt::GetGroup().last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  return uniqueId == nullptr ? ncclInvalidArgument : rt::MakeUniqueId(uniqueId);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return ncclCommInitRankConfig(comm, nranks, commId, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    return rt::Fail(ncclUnhandledCudaError, "there is no device");
  }
  return rt::Init(comm, nranks, commId, rank, device, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return ncclUnhandledCudaError;
  if (comm == nullptr || ndev < 1) return rt::Fail(ncclInvalidArgument, "no communicators");
  std::set<int> used;
  for (int i = 0; i < ndev; ++i) {
    const int device = devlist == nullptr ? i : devlist[i];
    if (device < 0 || device >= devices) return rt::Fail(ncclInvalidArgument, "no such device");
    if (!used.insert(device).second) return rt::Fail(ncclInvalidUsage, "a device is given twice");
  }
  ncclUniqueId id;
  if (const auto result = rt::MakeUniqueId(&id); result != ncclSuccess) return result;
  ncclGroupStart();
  for (int i = 0; i < ndev; ++i) {
    rt::Init(&comm[i], ndev, id, i, devlist == nullptr ? i : devlist[i], nullptr);
  }
  return ncclGroupEnd();
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config) {
  const rt::Shared parent = rt::Find(comm);
  if (parent == nullptr || newcomm == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
    return rt::Fail(ncclInvalidArgument, "not a communicator, or a negative color");
  }
  *newcomm = nullptr;
  if (parent->status() == ncclInProgress) return rt::Fail(ncclInvalidUsage, "still being created");
  const bool blocking = config == nullptr ? parent->blocking() : rt::IsBlocking(config);
  parent->SetStatus(ncclInProgress);
  return rt::Meet(parent, [=] {
    const auto result = parent->Split(color, key, [&](int rank, int ranks, const ncclUniqueId& id) {
      auto inner = std::make_shared<rt::Communicator>(rank, ranks, parent->device(), blocking);
      *newcomm = rt::Add(inner);
      return rt::Connect(inner, id);
    });
    parent->SetStatus(result);
    return result;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const rt::Shared inner = rt::Find(comm);
  if (inner == nullptr) return ncclInvalidArgument;
  const ncclResult_t status = inner->status();
  if (status == ncclInProgress) return rt::Fail(ncclInvalidUsage, "a call is in progress");
  if (status != ncclSuccess) return rt::Fail(status, "the communicator has failed");
  inner->Finalize();
  rt::WaitForLast(inner);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  const rt::Shared inner = rt::Remove(comm);
  if (inner == nullptr) return rt::Fail(ncclInvalidArgument, "not a communicator");
  rt::WaitForLast(inner);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  rt::MayHang("ncclCommAbort");
  const rt::Shared inner = rt::Remove(comm);
  if (inner == nullptr) return rt::Fail(ncclInvalidArgument, "not a communicator");
  inner->mesh().Abort();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  const rt::Shared inner = rt::Find(comm);
  if (inner == nullptr || asyncError == nullptr) return ncclInvalidArgument;
  *asyncError = inner->status();
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const rt::Shared inner = rt::Find(comm);
  if (inner == nullptr || count == nullptr) return ncclInvalidArgument;
  *count = inner->mesh().ranks();
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  const rt::Shared inner = rt::Find(comm);
  if (inner == nullptr || device == nullptr) return ncclInvalidArgument;
  *device = inner->device();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  const rt::Shared inner = rt::Find(comm);
  if (inner == nullptr || rank == nullptr) return ncclInvalidArgument;
  *rank = inner->mesh().rank();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return rt::Enqueue(comm, stream, {Call::kAllReduce, sendbuff, recvbuff, count, datatype, op, 0});
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return rt::Enqueue(comm, stream, {Call::kReduce, sendbuff, recvbuff, count, datatype, op, root});
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return rt::Enqueue(comm, stream,
                     {Call::kBroadcast, sendbuff, recvbuff, count, datatype, ncclSum, root});
}

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return rt::Enqueue(comm, stream,
                     {Call::kReduceScatter, sendbuff, recvbuff, recvcount, datatype, op, 0});
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return rt::Enqueue(comm, stream,
                     {Call::kAllGather, sendbuff, recvbuff, sendcount, datatype, ncclSum, 0});
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return rt::Enqueue(comm, stream,
                     {Call::kSend, sendbuff, nullptr, count, datatype, ncclSum, peer});
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return rt::Enqueue(comm, stream,
                     {Call::kRecv, nullptr, recvbuff, count, datatype, ncclSum, peer});
}

ncclResult_t ncclGroupStart() {
  ++rt::GetGroup().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return rt::EndGroup(); }
