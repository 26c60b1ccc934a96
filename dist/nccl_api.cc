#include "dist/nccl_api.h"

#include <dlfcn.h>

#include "core/cuda/device.h"
#include "core/error.h"

namespace lockstep::dist {
namespace {

#ifdef CUDASIM

NcclApi Load() {
  return {ncclGetErrorString, ncclGetLastError,  ncclGetUniqueId, ncclCommInitRankConfig,
          ncclCommFinalize,   ncclCommDestroy,   ncclCommAbort,   ncclCommGetAsyncError,
          ncclAllReduce,      ncclReduceScatter, ncclAllGather,   ncclBroadcast,
          ncclSend,           ncclRecv,          ncclGroupStart,  ncclGroupEnd};
}

#else

template <class F>
void Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  if (*function == nullptr) {
    throw Error(StrCat("libnccl.so.2 has no ", name,
                       ": it is older than NCCL 2.14; install a newer "
                       "libnccl2"));
  }
}

NcclApi Load() {
  // Never closed: communicators may outlive whoever asks.
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(StrCat("training on several GPUs needs NCCL, which cannot be loaded (", dlerror(),
                       "); install libnccl2, or add its folder to LD_LIBRARY_PATH"));
  }
  NcclApi api;
  Find(library, "ncclGetErrorString", &api.GetErrorString);
  Find(library, "ncclGetLastError", &api.GetLastError);
  Find(library, "ncclGetUniqueId", &api.GetUniqueId);
  Find(library, "ncclCommInitRankConfig", &api.CommInitRankConfig);
  Find(library, "ncclCommFinalize", &api.CommFinalize);
  Find(library, "ncclCommDestroy", &api.CommDestroy);
  Find(library, "ncclCommAbort", &api.CommAbort);
  Find(library, "ncclCommGetAsyncError", &api.CommGetAsyncError);
  Find(library, "ncclAllReduce", &api.AllReduce);
  Find(library, "ncclReduceScatter", &api.ReduceScatter);
  Find(library, "ncclAllGather", &api.AllGather);
  Find(library, "ncclBroadcast", &api.Broadcast);
  Find(library, "ncclSend", &api.Send);
  Find(library, "ncclRecv", &api.Recv);
  Find(library, "ncclGroupStart", &api.GroupStart);
  Find(library, "ncclGroupEnd", &api.GroupEnd);
  return api;
}

#endif

}  // namespace

const NcclApi& Nccl() {
  static const NcclApi api = Load();
  return api;
}

}  // namespace lockstep::dist
