// Hashes by which ranks compare tensors and bytes.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace lockstep::dist {

// A 64-bit, non-cryptographic hash. A change within one aligned 8-byte word always changes it;
// other changes go unnoticed with a probability of 2^-64. Computed in parallel; independent of the
// number of threads.
uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t seed = 0);

// Hashes dtype, shape and elements; 0 for an undefined tensor. Copies GPU tensors to the host.
uint64_t HashTensor(const Tensor& x);

// Combines hashes; not commutative.
uint64_t HashCombine(uint64_t a, uint64_t b);

}  // namespace lockstep::dist
