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

// Rows of bytes; one row for plain copies.
struct Rows {
  size_t width = 0;
  size_t height = 1;
  size_t pitch = 0;

  size_t span() const { return height == 0 || width == 0 ? 0 : (height - 1) * pitch + width; }
};

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

void CopyRows(char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width,
              size_t height) {
  const DeviceAccess access(DeviceAccess::kAllDevices);
  for (size_t row = 0; row < height; ++row) {
    // The ranges should not overlap, but CUDA does not say what happens if they do.
    std::memmove(to + row * to_pitch, from + row * from_pitch, width);
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
  const size_t height = call.to_rows.height;
  Work work;
  work.type = cudaGraphNodeTypeMemcpy;
  work.what = std::string(call.name) + " of " + std::to_string(width * height) + " bytes";
  bool wait = false;
  std::string bug;
  {
    const Lock lock(state.mutex);
    if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
    if (call.synchronous) {
      if (const cudaError_t error = CheckUnsafeCall(lock); error != cudaSuccess) return error;
    }
    if (width == 0 || height == 0) return cudaSuccess;
    if (call.to == nullptr || call.from == nullptr) return cudaErrorInvalidValue;
    if (height > 1 && (call.to_rows.pitch < width || call.from_rows.pitch < width)) {
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
    CopyRows(static_cast<char*>(call.to), call.to_rows.pitch, static_cast<const char*>(call.from),
             call.from_rows.pitch, width, height);
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

cudaError_t Set(const char* name, void* to, int value, Rows rows, cudaStream_t stream,
                bool synchronous) {
  State& state = GetState();
  Work work;
  work.type = cudaGraphNodeTypeMemset;
  work.what = std::string(name) + " of " + std::to_string(rows.width * rows.height) + " bytes";
  std::string bug;
  bool wait = false;
  {
    const Lock lock(state.mutex);
    if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
    if (synchronous) {
      if (const cudaError_t error = CheckUnsafeCall(lock); error != cudaSuccess) return error;
    }
    if (rows.width == 0 || rows.height == 0) return cudaSuccess;
    const End end = Look(to, rows.span());
    if (end.place == Place::kPageable) return cudaErrorInvalidValue;
    if (rows.height > 1 && rows.pitch < rows.width) return cudaErrorInvalidPitchValue;
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
    for (size_t row = 0; row < rows.height; ++row) {
      std::memset(static_cast<char*>(to) + row * rows.pitch, value, rows.width);
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

}  // namespace
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
