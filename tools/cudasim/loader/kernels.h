// The kernels and variables of objects that nvcc made. They announce themselves before main, when
// no runtime has been chosen: so they are remembered.
#ifndef CUDASIM_LOADER_KERNELS_H_
#define CUDASIM_LOADER_KERNELS_H_

namespace cudasim {

// Announces them to the library, and those that are loaded later as they come. Returns null, or the
// name of a function for it that the library lacks, if there is something to announce.
const char* AnnounceKernels(void* library);

}  // namespace cudasim

#endif  // CUDASIM_LOADER_KERNELS_H_
