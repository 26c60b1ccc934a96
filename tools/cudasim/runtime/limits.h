// The limits of a simulated GPU: an H100's, where they do not depend on silicon.
#ifndef CUDASIM_RUNTIME_LIMITS_H_
#define CUDASIM_RUNTIME_LIMITS_H_

#include <cstddef>

namespace cudasim::runtime {

inline constexpr int kMajor = 9;
inline constexpr int kMinor = 0;
inline constexpr int kMultiprocessors = 132;
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxThreadsPerMultiprocessor = 2048;
inline constexpr int kMaxBlocksPerMultiprocessor = 32;
inline constexpr int kMaxBlock[3] = {1024, 1024, 64};
inline constexpr int kMaxGrid[3] = {2147483647, 65535, 65535};
inline constexpr int kRegisters = 65536;
inline constexpr int kSharedPerBlock = 48 * 1024;
inline constexpr int kSharedPerBlockOptIn = 227 * 1024;
inline constexpr int kSharedPerMultiprocessor = 228 * 1024;
inline constexpr int kSharedReserved = 1024;
inline constexpr int kConstant = 64 * 1024;
inline constexpr int kL2 = 50 * 1024 * 1024;
inline constexpr int kClockKhz = 1980000;
inline constexpr int kMemoryClockKhz = 2619000;
inline constexpr int kMemoryBusBits = 5120;
inline constexpr int kCudaVersion = 13000;

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_LIMITS_H_
