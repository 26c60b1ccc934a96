// The limits of a simulated GPU: an H100's, where they do not depend on silicon.
#ifndef CUDASIM_RUNTIME_LIMITS_H_
#define CUDASIM_RUNTIME_LIMITS_H_

#include <cstddef>

#include "cudasim/settings.h"

namespace cudasim::runtime {

inline int Major() { return GetSettings().capability / 10; }
inline int Minor() { return GetSettings().capability % 10; }
inline constexpr int kMultiprocessors = 132;
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxThreadsPerMultiprocessor = 2048;
inline constexpr int kMaxBlocksPerMultiprocessor = 32;
inline constexpr int kMaxBlock[3] = {1024, 1024, 64};
inline constexpr int kMaxGrid[3] = {2147483647, 65535, 65535};
inline constexpr int kRegisters = 65536;
inline constexpr int kSharedPerBlock = 48 * 1024;
inline constexpr int kSharedReserved = 1024;
inline int SharedPerBlockOptIn() {
  const int capability = GetSettings().capability;
  return 1024 * (capability == 80 ? 163 : capability == 90 ? 227 : 99);
}
inline int SharedPerMultiprocessor() { return SharedPerBlockOptIn() + kSharedReserved; }
inline constexpr int kConstant = 64 * 1024;
inline constexpr int kL2 = 50 * 1024 * 1024;
inline constexpr int kClockKhz = 1980000;
inline constexpr int kMemoryClockKhz = 2619000;
inline constexpr int kMemoryBusBits = 5120;
inline constexpr int kCudaVersion = 13000;

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_LIMITS_H_
