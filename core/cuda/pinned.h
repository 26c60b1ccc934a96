// Host memory that devices read and write directly, and copies through it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/stream.h"

namespace lockstep::cuda {

// At least `bytes` bytes of page-locked memory, from a process-wide pool: allocating such memory
// from the system stops every stream. All devices may use it; `device` is current for the
// allocation. It goes back to the pool with the last pointer, so the device must be done with it by
// then.
std::shared_ptr<void> AllocatePinned(int64_t bytes, Device device);

// Copies host memory to the device, ordered on the stream. The host memory may be overwritten or
// freed as soon as this returns; the host waits only if more than 64 MiB of its copies are pending.
// Throws Error while the stream is captured: such a copy cannot be part of a graph.
void CopyFromHost(void* to, const void* from, int64_t bytes, Stream stream);

// Copies device memory to the host after the work already submitted to the stream, and waits for
// the copy.
void CopyToHostAndWait(void* to, const void* from, int64_t bytes, Stream stream);

}  // namespace lockstep::cuda
