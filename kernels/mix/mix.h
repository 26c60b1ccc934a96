// A tensor and another one, each times a learned number.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y = a x + b z, elementwise: x and z of the same shape, floating dtype and device; a and b: [1],
// of that dtype or f32. 16-bit floats compute in f32, and y is rounded once. Saves all four. The
// gradients of a and b are sums over all elements in f32 or wider, over blocks that depend only on
// the number of elements and on the dtype.
Tensor Mix(const Tensor& x, const Tensor& a, const Tensor& z, const Tensor& b);

}  // namespace ops

// All contiguous; a and b are f64 for f64, else f32.
inline constinit Slot<void(const Tensor& x, const Tensor& a, const Tensor& z, const Tensor& b,
                           const Tensor& y)>
    mix_forward{"mix_forward"};

struct MixBackwardArgs {
  Tensor x, a, z, b, dy;
  // Written; undefined where they are not needed. dx = a dy, dz = b dy; sums: [2], of a's dtype,
  // the sums of dy x and of dy z.
  Tensor dx, dz, sums;
};
inline constinit Slot<void(const MixBackwardArgs&)> mix_backward{"mix_backward"};

}  // namespace lockstep
