// What ops return that find elements.
#pragma once

#include "core/tensor.h"

namespace lockstep::ops {

struct ValuesAndIndices {
  Tensor values, indices;  // x's dtype; i64
};

}  // namespace lockstep::ops
