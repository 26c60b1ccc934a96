// Initialisers: pure functions of (seed, parameter name, element index). Philox is keyed by the
// seed, its counter is the hash of the name and the element index, the arithmetic is f64 on the
// host, rounded to f32 at the end: so values do not depend on device, dtype, sharding, threads or
// what else the model contains, and no state is carried from one parameter to the next.
#pragma once

#include "core/parameter.h"

namespace lockstep::nn {

// Every element is `value`.
Initializer Constant(double value);

// Uniform in [low, high], from 32 random bits per element. Throws ArgumentError unless low <= high,
// both finite.
Initializer Uniform(double low, double high);

// Normal by Box and Muller, "A note on the generation of random normal deviates" (1958), from 32 +
// 32 random bits per pair of elements; |value - mean| <= 6.7 std. Throws ArgumentError unless std
// >= 0, both finite.
Initializer Normal(double mean, double std);

// Uniform in +-1/sqrt(fan_in): what torch.nn.Linear does by default to its weight [out, in] and to
// its bias, fan_in being `in`. He et al., "Delving deep into rectifiers" (2015), with a = sqrt(5).
Initializer KaimingUniform(int64_t fan_in);

}  // namespace lockstep::nn
