#include "dist/groups/nccl_comm.h"

#include <algorithm>
#include <cstdio>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "core/cuda/device.h"
#include "core/cuda/error.h"

namespace lockstep::dist {
namespace {

using Clock = AwakeClock;

// What NCCL calls the dtypes that it can reduce.
std::optional<ncclDataType_t> TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    case DType::kU8:
      return ncclUint8;
    default:
      return std::nullopt;
  }
}

ncclRedOp_t OpOf(ReduceOp op) {
  return op == ReduceOp::kSum ? ncclSum : op == ReduceOp::kMax ? ncclMax : ncclMin;
}

cudaStream_t HandleOf(Stream stream) { return static_cast<cudaStream_t>(stream.handle.get()); }

// Parts do not share their parent's resources (splitShare): NCCL would then run the operations of
// all of them one after the other, and ranks that begin them in different orders would wait for
// each other.
ncclConfig_t ConfigOf(int most_blocks) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (most_blocks > 0) config.maxCTAs = most_blocks;
  return config;
}

// "NCCL: ncclAllReduce: internal error: ...", with what NCCL adds; `call` may be empty.
std::string TextOf(const std::string& call, ncclResult_t result, ncclComm_t comm) {
  const std::string more = Nccl().GetLastError(comm);
  return StrCat("NCCL: ", call, call.empty() ? "" : ": ", Nccl().GetErrorString(result),
                more.empty() ? "" : ": ", more);
}

constexpr auto kAbortTime = std::chrono::seconds(5);

// On a thread of its own, which keeps `used` for as long as NCCL does.
void AbortInTime(std::vector<ncclComm_t> comms, Device device, const FailureState* state,
                 std::shared_ptr<const void> used) {
  std::erase(comms, nullptr);
  if (comms.empty()) return;
  const auto done = std::make_shared<std::promise<void>>();
  const auto abort = [comms = std::move(comms), device, used = std::move(used), done] {
    LS_CUDA_WARN(cudaSetDevice(device.index));
    Nccl().GroupStart();
    for (const ncclComm_t comm : comms) Nccl().CommAbort(comm);
    Nccl().GroupEnd();
    done->set_value();
  };
  try {
    std::thread(abort).detach();
  } catch (const std::system_error&) {  // there can be no thread
    return abort();
  }
  if (done->get_future().wait_for(kAbortTime) == std::future_status::ready) return;
  const auto failure = state == nullptr ? std::nullopt : state->Get();
  std::fprintf(stderr, "warning: %s: NCCL has not aborted its communicators for %d s%s%s\n",
               StrCat(device).c_str(), static_cast<int>(kAbortTime.count()),
               failure ? "; the run has failed: " : "", failure ? failure->reason.c_str() : "");
}

}  // namespace

bool NcclReduces(DType dtype) { return TypeOf(dtype).has_value(); }

ncclUniqueId NcclComm::NewId() {
  ncclUniqueId id;
  const ncclResult_t result = Nccl().GetUniqueId(&id);
  if (result != ncclSuccess) throw Error(TextOf("ncclGetUniqueId", result, nullptr));
  return id;
}

NcclComm::NcclComm(Device device, std::chrono::milliseconds timeout,
                   std::shared_ptr<const FailureState> state)
    : device_(device), timeout_(timeout), state_(std::move(state)) {}

NcclComm::NcclComm(const ncclUniqueId& id, int rank, int size, Device device,
                   std::chrono::milliseconds timeout, std::shared_ptr<const FailureState> state,
                   int most_blocks)
    : NcclComm(device, timeout, std::move(state)) {
  ncclConfig_t config = ConfigOf(most_blocks);
  cuda::SetDevice(device);
  const ncclResult_t result = Nccl().CommInitRankConfig(&comm_, size, id, rank, &config);
  try {
    WaitUntilDone("ncclCommInitRankConfig", result, Clock::now() + timeout);
  } catch (const Error&) {
    // After a failure there may be no communicator at all.
    if (comm_ != nullptr) Abort();
    throw;
  }
}

std::unique_ptr<NcclComm> NcclComm::Split(int color, int key, std::chrono::milliseconds timeout,
                                          std::shared_ptr<const FailureState> state,
                                          int most_blocks) {
  if (Nccl().CommSplit == nullptr) return nullptr;
  std::unique_ptr<NcclComm> part(new NcclComm(device_, timeout, std::move(state)));
  ncclConfig_t config = ConfigOf(most_blocks);
  // NCCL writes it at some time before this one is done.
  ncclComm_t* const slot = &parts_.emplace_back(nullptr);
  const auto split = [&] { return Nccl().CommSplit(comm_, color, key, slot, &config); };
  Run("ncclCommSplit", {}, split, timeout);
  part->comm_ = *slot;
  parts_.pop_back();
  try {
    part->WaitUntilDone("ncclCommSplit", ncclInProgress, Clock::now() + timeout);
  } catch (const Error&) {
    part->Abort();
    throw;
  }
  return part;
}

NcclComm::~NcclComm() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return;
  try {
    cuda::SetDevice(device_);
    WaitUntilDone("ncclCommFinalize", Nccl().CommFinalize(comm_), Clock::now() + timeout_);
    Nccl().CommDestroy(comm_);
  } catch (const Error&) {
    AbortInTime({comm_}, device_, state_.get(), InUse());
  }
}

void NcclComm::WaitUntilDone(const char* what, ncclResult_t result, Clock::time_point deadline) {
  // From NCCL 2.23.4 on each call hands its work to a thread, which needs a few microseconds: a
  // sleep would last many times as long.
  const Clock::time_point soon = Clock::now() + std::chrono::microseconds(300);
  auto pause = std::chrono::microseconds(10);
  while (result == ncclInProgress && comm_ != nullptr) {
    if (aborting_ || (state_ && state_->Get())) {
      throw Error(StrCat("NCCL: ", what, ": the communicator is being aborted"));
    }
    if (Clock::now() > deadline) throw NcclTimeout(what);
    if (Clock::now() < soon) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(5000));
    }
    const ncclResult_t asked = Nccl().CommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return;
  const std::string text = TextOf(what, result, comm_);
  if (result == ncclRemoteError) throw NcclRemoteError(text);
  throw Error(text);
}

template <class F>
void NcclComm::Run(const char* what, const Stream& stream, const F& call,
                   std::optional<std::chrono::milliseconds> timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) throw Error(StrCat("NCCL: ", what, ": the communicator was aborted"));
  cuda::SetDevice(device_);
  if (stream.handle != nullptr) stream_ = stream;
  WaitUntilDone(what, call(), Clock::now() + timeout.value_or(timeout_));
}

void NcclComm::AllReduce(const Tensor& tensor, ReduceOp op, Stream stream) {
  Run("ncclAllReduce", stream, [&] {
    return Nccl().AllReduce(tensor.raw_data(), tensor.raw_data(),
                            static_cast<size_t>(tensor.numel()), TypeOf(tensor.dtype()).value(),
                            OpOf(op), comm_, HandleOf(stream));
  });
}

void NcclComm::ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op,
                             Stream stream) {
  Run("ncclReduceScatter", stream, [&] {
    return Nccl().ReduceScatter(input.raw_data(), output.raw_data(),
                                static_cast<size_t>(output.numel()), TypeOf(input.dtype()).value(),
                                OpOf(op), comm_, HandleOf(stream));
  });
}

void NcclComm::AllGather(const Tensor& input, const Tensor& output, Stream stream) {
  Run("ncclAllGather", stream, [&] {
    return Nccl().AllGather(input.raw_data(), output.raw_data(), static_cast<size_t>(input.bytes()),
                            ncclUint8, comm_, HandleOf(stream));
  });
}

void NcclComm::Broadcast(const Tensor& tensor, int root, Stream stream) {
  Run("ncclBroadcast", stream, [&] {
    return Nccl().Broadcast(tensor.raw_data(), tensor.raw_data(),
                            static_cast<size_t>(tensor.bytes()), ncclUint8, root, comm_,
                            HandleOf(stream));
  });
}

void NcclComm::Exchange(const std::vector<Part>& parts, Stream stream) {
  Run("a group of ncclSend and ncclRecv", stream, [&] {
    ncclResult_t first = Nccl().GroupStart();
    for (const Part& part : parts) {
      const auto bytes = static_cast<size_t>(part.bytes);
      const ncclResult_t result =
          part.direction == Transfer::Direction::kSend
              ? Nccl().Send(part.data, bytes, ncclUint8, part.peer, comm_, HandleOf(stream))
              : Nccl().Recv(part.data, bytes, ncclUint8, part.peer, comm_, HandleOf(stream));
      if (first == ncclSuccess && result != ncclInProgress) first = result;
    }
    const ncclResult_t end = Nccl().GroupEnd();
    return first == ncclSuccess ? end : first;
  });
}

std::optional<std::string> NcclComm::AsyncError() {
  // A thread that waits for NCCL gets the error itself.
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || comm_ == nullptr) return std::nullopt;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = Nccl().CommGetAsyncError(comm_, &state);
  if (result != ncclSuccess) state = result;
  if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
  return TextOf("", state, comm_);
}

std::shared_ptr<const void> NcclComm::InUse() const {
  return std::make_shared<const std::pair<Stream, std::vector<Tensor>>>(stream_, kept_);
}

ncclComm_t NcclComm::Take() {
  aborting_ = true;  // a thread that waits for NCCL then releases the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(comm_, nullptr);
}

void NcclComm::Abort() { AbortInTime({Take()}, device_, state_.get(), InUse()); }

void NcclComm::Abort(const std::vector<std::shared_ptr<NcclComm>>& comms) {
  std::vector<ncclComm_t> taken;
  for (const auto& comm : comms) taken.push_back(comm->Take());
  AbortInTime(std::move(taken), comms.front()->device_, comms.front()->state_.get(),
              std::make_shared<std::vector<std::shared_ptr<NcclComm>>>(comms));
}

}  // namespace lockstep::dist
