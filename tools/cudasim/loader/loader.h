// The simulator as a shared library that a program loads on demand. A program that links
// tools/cudasim/loader has CUDA's functions without the simulator. Until Connect, they fail as
// CUDA's own runtime does without a driver.
#ifndef CUDASIM_LOADER_LOADER_H_
#define CUDASIM_LOADER_LOADER_H_

namespace cudasim {

// Whether CUDA's functions are the simulator's: it is linked with this program, or has been
// connected.
bool Connected();

// Makes CUDA's functions those of the library, a handle from dlopen. Returns null, or if the
// library lacks a function, its name, and then connects nothing. Not thread-safe.
const char* Connect(void* library);

}  // namespace cudasim

#endif  // CUDASIM_LOADER_LOADER_H_
