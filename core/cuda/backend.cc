#include "core/cuda/backend.h"

namespace lockstep::cuda {

const bool kProgramsContainKernels = LOCKSTEP_PROGRAMS_CONTAIN_KERNELS;

}  // namespace lockstep::cuda
