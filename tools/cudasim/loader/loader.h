// The simulator as a shared library that a program loads when it is wanted. A program that links
// tools/cudasim/loader has CUDA's functions without the simulator: until Connect they say that
// there is no driver, as CUDA's own runtime does where none is installed.
#ifndef CUDASIM_LOADER_LOADER_H_
#define CUDASIM_LOADER_LOADER_H_

namespace cudasim {

// Whether CUDA's functions are the simulator's: it is linked with this program, or connected.
bool Connected();

// From now on CUDA's functions are those of the library, a handle of dlopen. Returns the name of a
// function that it lacks, and connects nothing then; otherwise null. Not thread-safe.
const char* Connect(void* library);

}  // namespace cudasim

#endif  // CUDASIM_LOADER_LOADER_H_
