// Contexts, each of which takes a few hundred megabytes on a real device.
#ifndef CUDASIM_CONTEXTS_H_
#define CUDASIM_CONTEXTS_H_

#include <vector>

namespace cudasim::runtime {

// The devices on which this process has opened a context: by cudaSetDevice, or by a call that needs
// one on a thread whose current device it was. The current device of a thread that never set one is
// device 0. Null in programs that do not contain the simulator.
[[gnu::weak]] std::vector<int> DevicesWithContext();

}  // namespace cudasim::runtime

#endif  // CUDASIM_CONTEXTS_H_
