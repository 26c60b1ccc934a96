// Checks of arguments that many ops share.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// Throws ArgumentError, which names `op` and the argument and says how to cast it, unless x is
// floating.
void CheckFloating(const char* op, const Tensor& x, const char* argument = "x");

// Whether a tensor of `dtype` can hold this number: floating ones hold any, rounded; integers and
// bools only their own values.
bool HasValue(DType dtype, double number);
// Throws ArgumentError, which names `op`, if not.
void CheckHasValue(const char* op, DType dtype, double number);
// A tensor of shape [] with this number, of x's dtype and on its device. Throws ArgumentError if
// the dtype does not have it.
Tensor NumberLike(const char* op, double number, const Tensor& x);

// CUDA devices sort at most 2^30 elements at once, with keys below 2^30. Throws ArgumentError,
// which names `op`, where `elements` or `keys` are more and the device is one. `why` says what is
// sorted.
void CheckSorts(const char* op, const char* why, Device device, int64_t elements, int64_t keys = 0);

// Throws ArgumentError, which names `op`, unless the positions of tokens are undefined, or i32 [b,
// t] on `device`; on the CPU also for one that is not in [0, rows).
void CheckPositions(const char* op, const Tensor& positions, int64_t b, int64_t t, Device device,
                    int64_t rows);

// Throws ArgumentError, which names `op`, unless x is a floating [..., C] with C > 0 and eps >= 0.
void CheckNormInput(const char* op, const Tensor& x, double eps);
// The same unless the parameter `t` of a norm of `c` channels is [c], of x's dtype or f32, and on
// x's device.
void CheckNormParameter(const char* op, const char* name, const Tensor& t, const Tensor& x,
                        int64_t c);

// Throws ArgumentError, which names `op`, unless the targets are indices of the shape of `scores`,
// which `name` names, without the last dimension, and on its device.
void CheckTargets(const char* op, const Tensor& targets, const char* name, const Tensor& scores);
// Throws ArgumentError for a class of a row of a loss that is neither in [0, classes) nor ignored.
[[noreturn]] void ThrowTarget(const char* op, int64_t target, int64_t position, int64_t classes,
                              int64_t ignore_index);

}  // namespace lockstep
