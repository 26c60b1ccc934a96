// Communicators: running what groups enqueue, and splitting.
#include "nccl_comm.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>
#include <tuple>
#include <utility>

#include "cudasim/access.h"

namespace cudasim::runtime {
namespace {

bool IsTransfer(const Call& call) { return call.kind == Call::kSend || call.kind == Call::kRecv; }

// All sends and receives of a group progress together. A rank's transfers with itself are copies.
ncclResult_t RunTransfers(Mesh* mesh, const std::vector<Call>& calls) {
  std::vector<Transfer> transfers;
  std::deque<const Call*> to_self;
  std::deque<const Call*> from_self;
  for (const Call& call : calls) {
    if (!IsTransfer(call)) continue;
    const bool send = call.kind == Call::kSend;
    if (call.root == mesh->rank()) {
      (send ? to_self : from_self).push_back(&call);
      continue;
    }
    auto* const data = send ? const_cast<char*>(static_cast<const char*>(call.send))
                            : static_cast<char*>(call.receive);
    transfers.push_back({call.root, data, call.count * SizeOf(call.type), send, Describe(call)});
  }
  for (; !to_self.empty() && !from_self.empty(); to_self.pop_front(), from_self.pop_front()) {
    const size_t bytes = std::min(to_self.front()->count * SizeOf(to_self.front()->type),
                                  from_self.front()->count * SizeOf(from_self.front()->type));
    if (bytes > 0) std::memmove(from_self.front()->receive, to_self.front()->send, bytes);
  }
  return mesh->Exchange(std::move(transfers));
}

bool IsUnloading() {
  const Lock lock(GetState().mutex);
  return GetState().unloading;
}

}  // namespace

cudaError_t Communicator::Run(const std::vector<Call>& calls) {
  const std::lock_guard<std::mutex> guard(running_);
  if (mesh_.aborted()) return cudaSuccess;
  ncclResult_t result = ncclSuccess;
  {
    const DeviceAccess access(DeviceAccess::kAllDevices);
    for (const Call& call : calls) {
      if (result == ncclSuccess && !IsTransfer(call)) result = RunCollective(&mesh_, call);
    }
    if (result == ncclSuccess) result = RunTransfers(&mesh_, calls);
  }
  if (result == ncclSuccess || mesh_.aborted()) return cudaSuccess;
  status_ = result;
  if (result == ncclInvalidUsage) {
    ReportBug(device_, Bug::kOther,
              "NCCL ranks disagree (a real GPU would hang): " + mesh_.error());
    return cudaErrorLaunchFailure;
  }
  // As on a GPU, the kernel waits for the lost rank until the communicator is aborted, because of
  // the asynchronous error.
  while (!mesh_.aborted() && !IsUnloading()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return cudaSuccess;
}

bool Communicator::BeginLaunch() {
  int status = ncclSuccess;
  return status_.compare_exchange_strong(status, ncclInProgress) || status == ncclInProgress;
}

void Communicator::EndLaunch(ncclResult_t result, std::string error) {
  if (result != ncclSuccess) launch_error_ = std::move(error);
  int in_progress = ncclInProgress;
  status_.compare_exchange_strong(in_progress, result);
}

ncclResult_t Communicator::Split(int color, int key,
                                 std::function<ncclResult_t(int, int, ncclUniqueId)> join) {
  {
    Lock lock(GetState().mutex);
    if (last != nullptr) WaitFor(lock, last);
  }
  const std::lock_guard<std::mutex> guard(running_);
  struct Choice {
    int32_t color;
    int32_t key;
  };
  const int rank = mesh_.rank();
  std::vector<Choice> choices(mesh_.ranks());
  choices[rank] = {color, key};
  Choice mine = choices[rank];
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < mesh_.ranks(); ++peer) {
    if (peer == rank) continue;
    transfers.push_back({peer, reinterpret_cast<char*>(&mine), sizeof(Choice), true, "split"});
    transfers.push_back(
        {peer, reinterpret_cast<char*>(&choices[peer]), sizeof(Choice), false, "split"});
  }
  if (const auto result = mesh_.Exchange(std::move(transfers)); result != ncclSuccess) {
    return result;
  }
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  std::vector<std::pair<int, int>> members;  // By key, then by rank.
  for (int peer = 0; peer < mesh_.ranks(); ++peer) {
    if (choices[peer].color == color) members.emplace_back(choices[peer].key, peer);
  }
  std::sort(members.begin(), members.end());
  ncclUniqueId id;
  const int leader = members.front().second;
  int new_rank = 0;
  std::vector<Transfer> ids;
  for (size_t i = 0; i < members.size(); ++i) {
    const int peer = members[i].second;
    if (peer == rank) new_rank = static_cast<int>(i);
    if (rank == leader && peer != rank) {
      ids.push_back({peer, id.internal, sizeof(id), true, "split id"});
    }
  }
  if (rank == leader) {
    if (const auto result = MakeUniqueId(&id); result != ncclSuccess) return result;
  } else {
    ids.push_back({leader, id.internal, sizeof(id), false, "split id"});
  }
  if (const auto result = mesh_.Exchange(std::move(ids)); result != ncclSuccess) return result;
  return join(new_rank, static_cast<int>(members.size()), id);
}

}  // namespace cudasim::runtime
