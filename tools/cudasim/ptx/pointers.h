// Which parameters of a kernel are addresses, and whether it reads or writes there.
#ifndef CUDASIM_PTX_POINTERS_H_
#define CUDASIM_PTX_POINTERS_H_

#include <vector>

#include "tools/cudasim/ptx/program.h"

namespace cudasim {
namespace ptx {

// By the kernel's text, so before it runs: an address that is computed from a parameter of 64 bits,
// by whatever way, makes that parameter a pointer. Numbers that enter into addresses are found,
// too: what they point to is nobody's memory. Not found are pointers that lie in memory, in arrays
// of parameters that are indexed at run time, and what called functions do.
std::vector<PointerParameter> FindPointers(const Program& program);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_POINTERS_H_
