// cudaMemcpy*, cudaMemset*.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cudasim/access.h"
#include "cudasim/settings.h"
#include "state.h"

namespace cudasim::runtime {
namespace {

// Planes of rows of bytes; one row for plain copies.
struct Rows {
  size_t width = 0;
  size_t height = 1;
  size_t pitch = 0;  // from a row to the next
  size_t depth = 1;
  size_t plane = 0;  // from a plane to the next

  size_t bytes() const { return width * height * depth; }
  size_t span() const {
    return bytes() == 0 ? 0 : (depth - 1) * plane + (height - 1) * pitch + width;
  }
};

// Planes of `ysize` rows each.
Rows Box(const cudaPitchedPtr& memory, const cudaExtent& extent) {
  return {extent.width, extent.height, memory.pitch, extent.depth, memory.pitch * memory.ysize};
}
char* At(const cudaPitchedPtr& memory, const cudaPos& at) {
  return static_cast<char*>(memory.ptr) + (at.z * memory.ysize + at.y) * memory.pitch + at.x;
}

enum class Place { kPageable, kPinned, kDevice, kManaged };

struct End {
  Place place = Place::kPageable;
  bool fits = true;  // Lies within its block.
  std::string block;
};

End Look(const void* pointer, size_t size) {
  End end;
  const std::shared_ptr<Block> block = FindBlock(pointer);
  if (block == nullptr || !block->contains(reinterpret_cast<uintptr_t>(pointer))) return end;
  end.place = block->kind == BlockKind::kDevice    ? Place::kDevice
              : block->kind == BlockKind::kManaged ? Place::kManaged
                                                   : Place::kPinned;
  end.fits = FindBlock(pointer, size) != nullptr;
  if (!end.fits) end.block = DescribeWithSites(*block);
  return end;
}

bool OnDevice(Place place) { return place == Place::kDevice || place == Place::kManaged; }

// The kind must agree with the pointers.
cudaError_t CheckKind(cudaMemcpyKind kind, Place to, Place from) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    return cudaErrorInvalidMemcpyDirection;
  }
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  // Managed and pinned memory count as either.
  const auto agrees = [](bool device, Place place) {
    return place == Place::kManaged || place == Place::kPinned ||
           device == (place == Place::kDevice);
  };
  if (!agrees(to_device, to) || !agrees(from_device, from)) return cudaErrorInvalidValue;
  return cudaSuccess;
}

void CopyRows(char* to, const Rows& to_rows, const char* from, const Rows& from_rows) {
  const DeviceAccess access(DeviceAccess::kAllDevices);
  for (size_t plane = 0; plane < to_rows.depth; ++plane) {
    for (size_t row = 0; row < to_rows.height; ++row) {
      // The ranges should not overlap, but CUDA does not say what happens if they do.
      std::memmove(to + plane * to_rows.plane + row * to_rows.pitch,
                   from + plane * from_rows.plane + row * from_rows.pitch, to_rows.width);
    }
  }
}

struct CopyCall {
  const char* name;
  void* to;
  const void* from;
  Rows to_rows;
  Rows from_rows;
  cudaMemcpyKind kind;
  cudaStream_t stream;
  bool synchronous;
};

cudaError_t Copy(const CopyCall& call) {
  State& state = GetState();
  const size_t width = call.to_rows.width;
  const size_t bytes = call.to_rows.bytes();
  Work work;
  work.type = cudaGraphNodeTypeMemcpy;
  work.what = std::string(call.name) + " of " + std::to_string(bytes) + " bytes";
  bool wait = false;
  std::string bug;
  {
    const Lock lock(state.mutex);
    if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
    if (call.synchronous) {
      if (const cudaError_t error = CheckUnsafeCall(lock); error != cudaSuccess) return error;
    }
    if (bytes == 0) return cudaSuccess;
    if (call.to == nullptr || call.from == nullptr) return cudaErrorInvalidValue;
    if (bytes > width && (call.to_rows.pitch < width || call.from_rows.pitch < width)) {
      return cudaErrorInvalidPitchValue;
    }
    const End to = Look(call.to, call.to_rows.span());
    const End from = Look(call.from, call.from_rows.span());
    if (const cudaError_t error = CheckKind(call.kind, to.place, from.place);
        error != cudaSuccess) {
      return error;
    }
    if (!to.fits) bug = work.what + " writes beyond " + to.block;
    if (!from.fits) bug = work.what + " reads beyond " + from.block;
    // With pageable memory, whether the call waits depends on the machine. By default it does, as
    // on most; with CUDASIM_DELAY it does not, as on those whose GPU reads the host's page tables.
    const bool pageable = to.place == Place::kPageable || from.place == Place::kPageable;
    const bool both_on_device = OnDevice(to.place) && OnDevice(from.place);
    const bool both_on_host = !OnDevice(to.place) && !OnDevice(from.place);
    wait = call.synchronous ? !both_on_device
                            : (pageable && GetSettings().delay_ms == 0) || both_on_host;
    work.ranges = {{call.from, call.from_rows.span(), false}, {call.to, call.to_rows.span(), true}};
  }
  if (!bug.empty()) {
    ReportBug(-1, Bug::kOutOfBounds, bug);
    return cudaErrorInvalidValue;
  }
  work.run = [=] {
    CopyRows(static_cast<char*>(call.to), call.to_rows, static_cast<const char*>(call.from),
             call.from_rows);
    return cudaSuccess;
  };
  std::shared_ptr<Op> op;
  const cudaError_t error = Submit(call.stream, std::move(work), &op);
  if (error != cudaSuccess || !wait || op == nullptr) return error;
  Lock lock(state.mutex);
  WaitFor(lock, op);
  return state.devices[op->work.device].sticky;
}

cudaError_t CopyFlat(const char* name, void* to, const void* from, size_t count,
                     cudaMemcpyKind kind, cudaStream_t stream, bool synchronous) {
  const Rows rows = {count, 1, count};
  return Copy({name, to, from, rows, rows, kind, stream, synchronous});
}

// Sets elements of 1, 2 or 4 bytes to the lowest of `value`. A row's width is in bytes.
cudaError_t Set(const char* name, void* to, unsigned value, Rows rows, cudaStream_t stream,
                bool synchronous, size_t element = 1) {
  State& state = GetState();
  Work work;
  work.type = cudaGraphNodeTypeMemset;
  work.what = std::string(name) + " of " + std::to_string(rows.bytes()) + " bytes";
  std::string bug;
  bool wait = false;
  {
    const Lock lock(state.mutex);
    if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
    if (synchronous) {
      if (const cudaError_t error = CheckUnsafeCall(lock); error != cudaSuccess) return error;
    }
    if (rows.bytes() == 0) return cudaSuccess;
    const End end = Look(to, rows.span());
    if (end.place == Place::kPageable) return cudaErrorInvalidValue;
    if (rows.bytes() > rows.width && rows.pitch < rows.width) return cudaErrorInvalidPitchValue;
    if (!end.fits) bug = work.what + " writes beyond " + end.block;
    // For device memory even the synchronous function returns at once.
    wait = synchronous && end.place == Place::kPinned;
    work.ranges = {{to, rows.span(), true}};
  }
  if (!bug.empty()) {
    ReportBug(-1, Bug::kOutOfBounds, bug);
    return cudaErrorInvalidValue;
  }
  work.run = [=] {
    const DeviceAccess access(DeviceAccess::kAllDevices);
    for (size_t row = 0; row < rows.height * rows.depth; ++row) {
      char* const begin =
          static_cast<char*>(to) + row / rows.height * rows.plane + row % rows.height * rows.pitch;
      if (element == 1) {
        std::memset(begin, static_cast<int>(value), rows.width);
        continue;
      }
      for (size_t at = 0; at < rows.width; at += element) std::memcpy(begin + at, &value, element);
    }
    return cudaSuccess;
  };
  std::shared_ptr<Op> op;
  const cudaError_t error = Submit(stream, std::move(work), &op);
  if (error != cudaSuccess || !wait || op == nullptr) return error;
  Lock lock(state.mutex);
  WaitFor(lock, op);
  return cudaSuccess;
}

cudaError_t CheckDevices(int a, int b) {
  const int count = static_cast<int>(GetState().devices.size());
  return a < 0 || b < 0 || a >= count || b >= count ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t Copy3D(const char* name, const cudaMemcpy3DParms* p, cudaStream_t stream,
                   bool synchronous) {
  if (p == nullptr) return cudaErrorInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) return cudaErrorNotSupported;
  return Copy({name, At(p->dstPtr, p->dstPos), At(p->srcPtr, p->srcPos), Box(p->dstPtr, p->extent),
               Box(p->srcPtr, p->extent), p->kind, stream, synchronous});
}

}  // namespace

cudaError_t SetElements(const cudaMemsetParams& to, cudaStream_t stream) {
  if (to.elementSize != 1 && to.elementSize != 2 && to.elementSize != 4) {
    return cudaErrorInvalidValue;
  }
  return Set("a graph's memset", to.dst, to.value, {to.width * to.elementSize, to.height, to.pitch},
             stream, false, to.elementSize);
}

}  // namespace cudasim::runtime

using cudasim::runtime::Return;
using cudasim::runtime::Rows;

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  return Return(
      cudasim::runtime::CopyFlat("cudaMemcpy", dst, src, count, kind, cudaStreamLegacy, true));
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Return(
      cudasim::runtime::CopyFlat("cudaMemcpyAsync", dst, src, count, kind, stream, false));
}

cudaError_t cudaMemcpyPeer(void* dst, int dstDevice, const void* src, int srcDevice, size_t count) {
  if (const auto error = cudasim::runtime::CheckDevices(dstDevice, srcDevice);
      error != cudaSuccess) {
    return Return(error);
  }
  return Return(cudasim::runtime::CopyFlat("cudaMemcpyPeer", dst, src, count,
                                           cudaMemcpyDeviceToDevice, cudaStreamLegacy, true));
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int dstDevice, const void* src, int srcDevice,
                                size_t count, cudaStream_t stream) {
  if (const auto error = cudasim::runtime::CheckDevices(dstDevice, srcDevice);
      error != cudaSuccess) {
    return Return(error);
  }
  return Return(cudasim::runtime::CopyFlat("cudaMemcpyPeerAsync", dst, src, count,
                                           cudaMemcpyDeviceToDevice, stream, false));
}

cudaError_t cudaMemcpy2D(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                         size_t height, cudaMemcpyKind kind) {
  return Return(
      cudasim::runtime::Copy({"cudaMemcpy2D", dst, src, Rows{width, height, dpitch},
                              Rows{width, height, spitch}, kind, cudaStreamLegacy, true}));
}

cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return Return(cudasim::runtime::Copy({"cudaMemcpy2DAsync", dst, src, Rows{width, height, dpitch},
                                        Rows{width, height, spitch}, kind, stream, false}));
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  return Return(cudasim::runtime::Copy3D("cudaMemcpy3D", p, cudaStreamLegacy, true));
}

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  return Return(cudasim::runtime::Copy3D("cudaMemcpy3DAsync", p, stream, false));
}

cudaError_t cudaMemset(void* devPtr, int value, size_t count) {
  return Return(cudasim::runtime::Set("cudaMemset", devPtr, value, Rows{count, 1, count},
                                      cudaStreamLegacy, true));
}

cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream) {
  return Return(cudasim::runtime::Set("cudaMemsetAsync", devPtr, value, Rows{count, 1, count},
                                      stream, false));
}

cudaError_t cudaMemset2D(void* devPtr, size_t pitch, int value, size_t width, size_t height) {
  return Return(cudasim::runtime::Set("cudaMemset2D", devPtr, value, Rows{width, height, pitch},
                                      cudaStreamLegacy, true));
}

cudaError_t cudaMemset2DAsync(void* devPtr, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return Return(cudasim::runtime::Set("cudaMemset2DAsync", devPtr, value,
                                      Rows{width, height, pitch}, stream, false));
}

cudaError_t cudaMemset3D(cudaPitchedPtr pitchedDevPtr, int value, cudaExtent extent) {
  return Return(cudasim::runtime::Set("cudaMemset3D", pitchedDevPtr.ptr, value,
                                      cudasim::runtime::Box(pitchedDevPtr, extent),
                                      cudaStreamLegacy, true));
}

cudaError_t cudaMemset3DAsync(cudaPitchedPtr pitchedDevPtr, int value, cudaExtent extent,
                              cudaStream_t stream) {
  return Return(cudasim::runtime::Set("cudaMemset3DAsync", pitchedDevPtr.ptr, value,
                                      cudasim::runtime::Box(pitchedDevPtr, extent), stream, false));
}

cudaError_t cudaMemAdvise(const void* devPtr, size_t count, cudaMemoryAdvise,
                          cudaMemLocation location) {
  return cudaMemPrefetchAsync(devPtr, count, location, 0, nullptr);
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* devPtr, size_t length,
                                     unsigned int flags) {
  if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost && flags != cudaMemAttachSingle) {
    return Return(cudaErrorInvalidValue);
  }
  return cudaMemPrefetchAsync(devPtr, length, {cudaMemLocationTypeDevice, 0}, 0, stream);
}

cudaError_t cudaMemPrefetchAsync(const void* devPtr, size_t count, cudaMemLocation location,
                                 unsigned int flags, cudaStream_t stream) {
  const cudasim::runtime::Lock lock(cudasim::runtime::GetState().mutex);
  const auto block = cudasim::runtime::FindBlock(devPtr, count);
  if (block == nullptr || block->kind != cudasim::runtime::BlockKind::kManaged || flags != 0 ||
      location.type == cudaMemLocationTypeInvalid) {
    return Return(cudaErrorInvalidValue);
  }
  const bool known = cudasim::runtime::Resolve(lock, stream) != nullptr;
  return Return(known ? cudaSuccess : cudaErrorInvalidResourceHandle);
}
