// Whether an element of a product of matrices depends, in its last bits, on more than its row and
// its column. For the benchmark only.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"
#include "kernels/bench/gpt.h"

namespace lockstep {

// One answer: elements of a product after a change that should not affect their values, compared
// with the same elements of the unchanged product.
struct BitsAnswer {
  std::string product;  // "qkv forward"
  DType dtype = DType::kF32;
  std::string change;  // "n 4096 of 16384"
  int64_t elements = 0, different = 0;
  bool refused = false;  // cuBLASLt has no algorithm for the changed product

  // Equal calls must give equal bits; the other answers are findings.
  static constexpr const char* kAgain = "nothing";
};

// Computes the products of a layer and of the head of the GPT, forward and backward, in bf16 and
// f32: repeated, with fewer rows and columns, with the second half of them, and with other leading
// dimensions.
std::vector<BitsAnswer> GemmBits(const GptShape& shape, Device device);

}  // namespace lockstep
