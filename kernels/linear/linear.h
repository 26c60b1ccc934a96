// The affine map, and its fusion with an activation.
#pragma once

#include "core/autograd/gradients.h"
#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class Activation {
  kNone,
  kGelu,  // the tanh form, as ops::Gelu
};

namespace ops {

// y = activation(x weight^T + bias).
// x [..., K], weight [N, K] (as in torch), bias [N] or undefined; y [..., N]; all of the same
// floating dtype. Sums over K are in f32 or wider and rounded once. K = 0 gives the bias.
// Saves x and weight, and the activation's input if there is one. The weight's gradient may be of
// another dtype (an f32 main gradient of a bf16 weight). With full_f32 neither these products nor
// those of backward round f32 to TF32, whatever cuda::AllowTf32 says: for the scores of a router.
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              Activation activation = Activation::kNone, bool full_f32 = false);

// Lets a RecomputeScope of "gelu" compute y, a product with Activation::kGelu, from its
// pre-activation (undefined: there is none), where GELU by itself has the same bits: on the CPU, in
// f32 and f64.
void OfferActivation(const Tensor& pre_activation, const Tensor& y);

}  // namespace ops

// With up to this many rows M, each row has the bits that it has alone, so that a prompt's text is
// the same in a batch and on its own.
inline constexpr int64_t kFewRows = 16;

// The low-level operations. Tensors are contiguous; M is the product of all dimensions of x except
// the last. Arguments are structs so that scales of FP8 operands can join them.

struct LinearForwardArgs {
  Tensor x;       // [M, K]
  Tensor weight;  // [N, K]
  Tensor bias;    // [N] or undefined
  Activation activation = Activation::kNone;
  Tensor pre_activation;  // [M, N], written; undefined: not needed, or no activation
  Tensor y;               // [M, N], written
  bool full_f32 = false;
};
inline constinit Slot<void(const LinearForwardArgs&)> linear_forward{"linear_forward"};

// d_pre = dy * activation'(pre_activation)
struct LinearBackwardActivationArgs {
  Activation activation = Activation::kNone;  // not kNone
  Tensor pre_activation;                      // [M, N]
  Tensor dy;                                  // [M, N]
  Tensor d_pre;                               // [M, N], written; may be dy
};
inline constinit Slot<void(const LinearBackwardActivationArgs&)> linear_backward_activation{
    "linear_backward_activation"};

// dx = dy weight, dweight = dy^T x, dbias = the sum of dy's rows. Each may be undefined: not
// needed. dweight and dbias may have another dtype than dy and x. With an
// activation, whose result x was, dx = (dy weight) * activation'(pre_activation), not added
// to.
struct LinearBackwardArgs {
  Tensor x;       // [M, K]; unused without dweight
  Tensor weight;  // [N, K]; unused without dx
  Tensor dy;      // [M, N]
  GradTarget dx;  // [M, K] or undefined
  Activation activation = Activation::kNone;
  Tensor pre_activation;  // [M, K], unless kNone
  GradTarget dweight;     // [N, K] or undefined
  GradTarget dbias;       // [N] or undefined
  bool full_f32 = false;
};
inline constinit Slot<void(const LinearBackwardArgs&)> linear_backward{"linear_backward"};

}  // namespace lockstep
