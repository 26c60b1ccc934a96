#include "dist/groups/nccl_api.h"

#include "core/cuda/device.h"
#include "core/system/shared_library.h"

namespace lockstep::dist {
namespace {

NcclApi OfSimulator() {
  return {ncclGetVersion,         ncclGetErrorString,    ncclGetLastError, ncclGetUniqueId,
          ncclCommInitRankConfig, ncclCommSplit,         ncclCommFinalize, ncclCommDestroy,
          ncclCommAbort,          ncclCommGetAsyncError, ncclAllReduce,    ncclReduceScatter,
          ncclAllGather,          ncclBroadcast,         ncclSend,         ncclRecv,
          ncclGroupStart,         ncclGroupEnd};
}

NcclApi Load() {
  const SharedLibrary library({.name = "NCCL, which training on several GPUs needs,",
                               .files = {"libnccl.so.2"},
                               .install = "libnccl2 2.14 or newer"});
  NcclApi api;
  library.Find("ncclGetVersion", &api.GetVersion);
  library.Find("ncclGetErrorString", &api.GetErrorString);
  library.Find("ncclGetLastError", &api.GetLastError);
  library.Find("ncclGetUniqueId", &api.GetUniqueId);
  library.Find("ncclCommInitRankConfig", &api.CommInitRankConfig);
  library.FindIfThere("ncclCommSplit", &api.CommSplit);
  library.Find("ncclCommFinalize", &api.CommFinalize);
  library.Find("ncclCommDestroy", &api.CommDestroy);
  library.Find("ncclCommAbort", &api.CommAbort);
  library.Find("ncclCommGetAsyncError", &api.CommGetAsyncError);
  library.Find("ncclAllReduce", &api.AllReduce);
  library.Find("ncclReduceScatter", &api.ReduceScatter);
  library.Find("ncclAllGather", &api.AllGather);
  library.Find("ncclBroadcast", &api.Broadcast);
  library.Find("ncclSend", &api.Send);
  library.Find("ncclRecv", &api.Recv);
  library.Find("ncclGroupStart", &api.GroupStart);
  library.Find("ncclGroupEnd", &api.GroupEnd);
  return api;
}

}  // namespace

const NcclApi& Nccl() {
  static const NcclApi api = cuda::Simulated() ? OfSimulator() : Load();
  return api;
}

}  // namespace lockstep::dist
