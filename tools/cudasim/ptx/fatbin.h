// The PTX that nvcc embeds in objects.
#ifndef CUDASIM_PTX_FATBIN_H_
#define CUDASIM_PTX_FATBIN_H_

#include <string>

namespace cudasim {
namespace ptx {

// The text for the highest architecture of at most `capability` (80, 90), out of a fat binary as it
// lies in section .nv_fatbin. Throws Unsupported if there is none.
std::string ReadFatbin(const void* fatbin, int capability);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_FATBIN_H_
