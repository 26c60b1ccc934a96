// Where the elements of two tensors part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/tensor.h"

namespace lockstep::models {

struct ComparedTensors {
  int64_t differing = 0;  // elements whose bits differ
  int64_t first = 0;      // the first of them, in row-major order
  std::string index;      // "[0, 3, 17]"
  double a = 0, b = 0;    // there
  double largest = 0;     // |a - b|
  double scale = 0;       // the largest |a|
};

// Of one shape and dtype, contiguous on the CPU. None if all bits are equal.
std::optional<ComparedTensors> CompareTensors(const Tensor& a, const Tensor& b);

// Compares two files of tensors with a tolerance, name by name in the order of the step, as those
// of another program differ in rounding: the largest difference over the largest element of the
// first. Returns what is said about it; `equal` tells whether all are within it. InputError if they
// have no name in common.
std::string CompareFiles(const std::string& a, const std::string& b, double tolerance, bool* equal);

}  // namespace lockstep::models
