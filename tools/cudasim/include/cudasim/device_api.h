// What device code sees.
#ifndef CUDASIM_DEVICE_API_H_
#define CUDASIM_DEVICE_API_H_

#include "cudasim/launch.h"
#include "cudasim/types.h"

#endif  // CUDASIM_DEVICE_API_H_
