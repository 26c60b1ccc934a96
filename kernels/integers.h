// Arithmetic of integer tensors, for the ops whose floating half is in kernels/binary and scale.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class IntegerOp { kAdd, kSub, kMul, kMaximum, kMinimum };

// i64, i32, u16 and u8; not bool.
bool IsInteger(DType dtype);

// a op b with NumPy's broadcasting: integers of the same dtype and device (not checked), any
// strides. Results that the dtype does not have wrap around. Without a gradient. `name` is for
// errors.
Tensor IntegerArithmetic(const char* name, IntegerOp op, const Tensor& a, const Tensor& b);

// y = a op b. All have y's shape and dtype; a and b have any strides, y is contiguous. Filled by
// kernels/binary.
inline constinit Slot<void(IntegerOp op, const Tensor& a, const Tensor& b, const Tensor& y)>
    integer_arithmetic{"integer_arithmetic"};

}  // namespace lockstep
