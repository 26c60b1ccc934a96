// Hashes by which ranks compare what they hold.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace lockstep::dist {

// A 64-bit hash of bytes, not cryptographic. Any change within one aligned word of 8 bytes changes
// it, whatever else the bytes are; other changes go unnoticed with a probability of 2^-64. Computed
// in parallel; does not depend on the number of threads.
uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t seed = 0);

// Of dtype, shape and elements; 0 for an undefined tensor. Reads a GPU's memory through the host.
uint64_t HashTensor(const Tensor& x);

// Combines hashes; the order counts.
uint64_t HashCombine(uint64_t a, uint64_t b);

}  // namespace lockstep::dist
