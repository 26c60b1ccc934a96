// NVTX's ranges for NVIDIA's profilers, in the way of NVTX 3's headers: the profiler names a
// library in NVTX_INJECTION64_PATH, whose InitializeInjectionNvtx2 fills a table of functions.
#ifndef CUDASIM_LOADER_NVTX_H_
#define CUDASIM_LOADER_NVTX_H_

namespace cudasim {

// nvtxRangePushA and nvtxRangePop: the range's level from the profiler, or -2 without one.
int PushNvtxRange(const char* message);
int PopNvtxRange();

}  // namespace cudasim

#endif  // CUDASIM_LOADER_NVTX_H_
