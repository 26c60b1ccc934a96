// Settings of the simulated machine, read from environment variables on first use. Tests may change
// them while nothing runs.
#ifndef CUDASIM_SETTINGS_H_
#define CUDASIM_SETTINGS_H_

#include <cstddef>

namespace cudasim::runtime {

enum class Leaks { kOff, kWarn, kError };

struct Settings {
  // CUDASIM_DEVICES: the number of GPUs, 0 to 8.
  int devices = 2;
  // CUDASIM_STARTUP_ERROR: the number of the error with which CUDA does not start; 0: it does.
  int startup_error = 0;
  // CUDASIM_MEMORY: bytes of memory per GPU; suffixes K, M, G.
  size_t memory = size_t{8} << 30;
  // CUDASIM_CAPABILITY: 10 times the compute capability, 80, 86, 89, 90 or 120, which also sets how
  // much shared memory a block can have: 90 is an H100, 89 an RTX 4090.
  int capability = 90;
  // CUDASIM_DELAY: milliseconds. A stream's work begins when something waits for it, or after this
  // delay. 0: at once.
  int delay_ms = 0;
  // CUDASIM_ORDERING=0 turns off the check that uses of the same memory in several streams are
  // ordered.
  bool ordering = true;
  // CUDASIM_PROTECT=0 lets the host access device memory. 1 where the processor has protection
  // keys; elsewhere it costs a system call per block and access. Always 0 under AddressSanitizer,
  // whose redzones need the memory on the heap.
  bool protect = true;
  // CUDASIM_ALIGNMENT: device memory begins at a multiple of this many bytes, a power of two from 1
  // to 256, and ends fewer than that many bytes before an unmapped page. AddressSanitizer, which
  // knows a block's end to the byte, keeps to 256.
  size_t alignment = 256;
  // CUDASIM_NCCL_LAUNCH: as NCCL from 2.23.4 on, the end of a group of nonblocking communicators
  // hands its calls to a thread and returns ncclInProgress; the thread enqueues them after a random
  // time of up to this many microseconds. -1: they are enqueued at once, as before that version.
  int nccl_launch_us = 0;
  // What becomes of such a launch, an ncclResult_t; no environment variable.
  int nccl_launch_result = 0;
  // CUDASIM_LEAKS=off|warn|error: how to treat device memory that is not freed at the end of the
  // process.
  Leaks leaks = Leaks::kWarn;
};

// Null in programs that do not contain the simulator.
[[gnu::weak]] Settings& GetSettings();

}  // namespace cudasim::runtime

#endif  // CUDASIM_SETTINGS_H_
