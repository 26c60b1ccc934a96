#include "nn/activation.h"

#include "kernels/gelu/gelu.h"
#include "kernels/unary/unary.h"

namespace lockstep::nn {

Tensor Gelu::Forward(const Tensor& x) { return ops::Gelu(x); }
Tensor Relu::Forward(const Tensor& x) { return ops::Relu(x); }
Tensor Tanh::Forward(const Tensor& x) { return ops::Tanh(x); }
Tensor Sigmoid::Forward(const Tensor& x) { return ops::Sigmoid(x); }

}  // namespace lockstep::nn
