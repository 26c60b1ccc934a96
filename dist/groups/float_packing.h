// Floats in fewer bytes, and back to the same bits, for links on which bytes cost more than
// computing does.
//
// Numbers next to each other, as gradients are, have exponents that differ little: of 64 at a time
// the largest exponent is written once, and each one's distance from it in 3 bits; where 3 bits do
// not do, the exponent follows in a byte. Sign and mantissa are kept as they are. A GPT's gradients
// become 0.86 of their size in f32, and 0.72 in bf16; 64 zeros become 2 bytes. An entropy code for
// all exponents of a tensor, as in DietGPU and ZipNN, could not do with less than 0.86 to 0.88 of
// the same f32: it does not know the neighbours.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace lockstep::dist {

// When what a rank sends is packed.
enum class Packing {
  kAuto,  // while the link is behind, at less than 50 MB/s (dist/groups/link_load.h)
  kAlways,
  kNever,
};

// f32 and bf16.
bool CanPack(DType dtype);

// Memory for n packed elements, whatever they are: a tenth more than that of the elements for f32,
// a fifth for bf16.
int64_t PackedBound(DType dtype, int64_t n);

// Packs n elements, whatever bits they are, and returns the bytes that they take.
int64_t PackFloats(DType dtype, const void* elements, int64_t n, std::byte* packed);

// Reads at most PackedBound bytes, whatever they are.
void UnpackFloats(DType dtype, const std::byte* packed, int64_t n, void* elements);

}  // namespace lockstep::dist
