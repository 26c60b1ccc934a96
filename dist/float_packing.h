// Floats in fewer bytes, and back to the same bits, for links on which bytes cost more than
// computing does.
//
// Numbers next to each other, as gradients are, have exponents that differ little: of 64 at a time
// the largest exponent is written once, and each one's distance from it in 3 bits; where 3 bits do
// not do, the exponent follows in a byte. Sign and mantissa are kept as they are. Dense gradients
// of f32 become 0.86 of their size, of bf16 0.72; 64 zeros become 2 bytes. Libraries that look for
// an entropy code (DietGPU, ZipNN) gain as much, and compute longer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace lockstep::dist {

// f32 and bf16.
bool CanPack(DType dtype);

// No n elements are packed into more bytes: an eighth more than they have, for what cannot be
// packed at all.
int64_t PackedBound(DType dtype, int64_t n);

// Packs n elements, whatever bits they are, and returns the bytes that they take.
int64_t PackFloats(DType dtype, const void* elements, int64_t n, std::byte* packed);

// Reads at most PackedBound bytes, whatever they are.
void UnpackFloats(DType dtype, const std::byte* packed, int64_t n, void* elements);

}  // namespace lockstep::dist
