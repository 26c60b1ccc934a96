// Fingerprints of tensors, which add up over their parts.
#pragma once

#include <cstdint>

#include "core/parameter.h"
#include "core/tensor.h"

namespace lockstep::dist {

// The sum, modulo 2^64, over the elements, of a hash of the element's index in the whole tensor and
// of its bits: so the fingerprints of parts, however a tensor is cut, add up to that of the whole,
// and no order of computing changes it. Any single difference shows (the hash is a bijection of the
// bits, at each index); several cancel each other with a probability of 2^-64. -0 differs from 0,
// and a NaN from one with other bits. It reads the bytes once.
//
// x: contiguous, of any dtype and device (from a GPU it is copied to the host); its first element
// is element `first` of the whole.
uint64_t Fingerprint(const Tensor& x, int64_t first = 0);

// That of elements [begin, end) of `part`, which is shaped like this rank's part of the parameter,
// with the indices that they have in the whole parameter.
uint64_t Fingerprint(const Parameter& parameter, const Tensor& part, int64_t begin, int64_t end);

}  // namespace lockstep::dist
