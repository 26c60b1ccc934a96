// The runtime API of the host.
#ifndef CUDASIM_RUNTIME_API_H_
#define CUDASIM_RUNTIME_API_H_

#include "cudasim/types.h"

#endif  // CUDASIM_RUNTIME_API_H_
