// Quantising on the host, where weights are read.
#pragma once

#include "kernels/nf4/nf4.h"

namespace lockstep::cpu {

// Fills m, on the CPU, with the codes and scales of `weight`: of the same shape, floating,
// contiguous, on the CPU. Throws ArgumentError if a weight is not finite.
void Nf4QuantizeInto(const Tensor& weight, const Nf4Matrix& m);

}  // namespace lockstep::cpu
