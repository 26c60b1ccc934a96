// The API of device code.
#ifndef CUDASIM_DEVICE_API_H_
#define CUDASIM_DEVICE_API_H_

// Device code may print and assert without further includes.
#include <cassert>
#include <cstdio>

#include "cudasim/atomics.h"
#include "cudasim/bits.h"
#include "cudasim/cp_async.h"
#include "cudasim/launch.h"
#include "cudasim/math.h"
#include "cudasim/mma.h"
#include "cudasim/qualifiers.h"
#include "cudasim/shared.h"
#include "cudasim/sync.h"
#include "cudasim/thread.h"
#include "cudasim/types.h"

#endif  // CUDASIM_DEVICE_API_H_
