// Shared by the CPU implementations of the ops that look up rows by id.
#pragma once

#include "kernels/cpu/elementwise.h"

namespace lockstep::cpu {

// Throws ArgumentError for the first id outside [0, v).
template <class I>
void CheckIds(const char* op, const Tensor& ids, int64_t v) {
  const I* id = ids.data<I>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    if (id[i] >= 0 && id[i] < v) [[likely]]
      continue;
    Shape position;
    for (int d = 0, left = ids.ndim(); d < left; ++d) {
      int64_t stride = 1;
      for (int k = d + 1; k < left; ++k) stride *= ids.dim(k);
      position.push_back(i / stride % ids.dim(d));
    }
    throw ArgumentError(StrCat(op, ": the id ", id[i], " at ", position, " is not in [0, ", v,
                               "), the rows of the weight: was the text encoded for a larger "
                               "vocabulary than the model's?"));
  }
}

}  // namespace lockstep::cpu
