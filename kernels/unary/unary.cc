#include "kernels/unary/unary.h"

#include "core/autograd/node.h"
#include "core/autograd/recomputable_ops.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"
#include "kernels/scale/scale.h"

namespace lockstep {
namespace {

const UnaryInfo& InfoOf(UnaryOp op) { return kUnaryInfo[static_cast<int>(op)]; }

// Not those that need their result themselves, or nothing.
bool IsRecomputable(const UnaryInfo& info) { return info.saves == UnarySaves::kInput; }

const bool registered = [] {
  for (const UnaryInfo& info : kUnaryInfo) {
    if (IsRecomputable(info)) RegisterRecomputable(info.name);
  }
  return true;
}();

void TimesNumber(double number, Gradients& grads) {
  const Tensor& dy = grads[0];
  if (number == 1) return grads.Put(0, dy);
  if (number == 0) {  // a product would be NaN where dy is infinite
    return grads.Put(0, Tensor::Zeros({}, dy.dtype(), dy.device()).Expand(dy.shape()));
  }
  const auto [dx, accumulate] = grads.Open(0);
  scale_slot(CurrentStream(dy.device()), dy, ScaleBy::kFactor, number, dx, accumulate);
}

// x: contiguous.
Tensor Compute(UnaryOp op, double a, double b, const Tensor& x) {
  Tensor y = Tensor::EmptyLike(x);
  unary_forward(CurrentStream(x.device()), op, a, b, x, y);
  return y;
}

}  // namespace

Tensor Unary(UnaryOp op, const Tensor& x, double a, double b) {
  const UnaryInfo& info = InfoOf(op);
  CheckFloating(info.name, x);
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Compute(op, a, b, input);
  const Tensor kept = info.saves == UnarySaves::kInput    ? input
                      : info.saves == UnarySaves::kResult ? y
                                                          : Tensor();
  RecordOp(info.name, {&x}, {&y}, {{kept, "the input or result of a unary function"}},
           [op, a, b](const SavedTensors& saved, Gradients& grads) {
             const Tensor kept = saved[0];
             if (!kept.defined()) return TimesNumber(InfoOf(op).derivative, grads);
             const auto [dx, accumulate] = grads.Open(0);
             unary_backward(CurrentStream(dx.device()), op, a, b, kept, grads[0], dx, accumulate);
           });
  if (IsRecomputable(info)) {
    OfferRecompute(info.name, y, {{input, "the input of a unary function"}},
                   [=](std::span<const Tensor> in) { return Compute(op, a, b, in[0]); });
  }
  return y;
}

namespace ops {

Tensor Relu(const Tensor& x) { return Unary(UnaryOp::kRelu, x); }
Tensor Relu2(const Tensor& x) { return Unary(UnaryOp::kRelu2, x); }
Tensor Tanh(const Tensor& x) { return Unary(UnaryOp::kTanh, x); }
Tensor Sigmoid(const Tensor& x) { return Unary(UnaryOp::kSigmoid, x); }
Tensor Silu(const Tensor& x) { return Unary(UnaryOp::kSilu, x); }
Tensor Exp(const Tensor& x) { return Unary(UnaryOp::kExp, x); }
Tensor Expm1(const Tensor& x) { return Unary(UnaryOp::kExpm1, x); }
Tensor Log(const Tensor& x) { return Unary(UnaryOp::kLog, x); }
Tensor Log1p(const Tensor& x) { return Unary(UnaryOp::kLog1p, x); }
Tensor Sqrt(const Tensor& x) { return Unary(UnaryOp::kSqrt, x); }
Tensor Rsqrt(const Tensor& x) { return Unary(UnaryOp::kRsqrt, x); }
Tensor Reciprocal(const Tensor& x) { return Unary(UnaryOp::kReciprocal, x); }
Tensor Square(const Tensor& x) { return Unary(UnaryOp::kSquare, x); }
Tensor Abs(const Tensor& x) { return Unary(UnaryOp::kAbs, x); }
Tensor Sign(const Tensor& x) { return Unary(UnaryOp::kSign, x); }
Tensor Sin(const Tensor& x) { return Unary(UnaryOp::kSin, x); }
Tensor Cos(const Tensor& x) { return Unary(UnaryOp::kCos, x); }
Tensor Erf(const Tensor& x) { return Unary(UnaryOp::kErf, x); }
Tensor Softplus(const Tensor& x) { return Unary(UnaryOp::kSoftplus, x); }
Tensor Floor(const Tensor& x) { return Unary(UnaryOp::kFloor, x); }
Tensor Ceil(const Tensor& x) { return Unary(UnaryOp::kCeil, x); }
Tensor Round(const Tensor& x) { return Unary(UnaryOp::kRound, x); }

Tensor Clamp(const Tensor& x, double low, double high) {
  LS_CHECK(low <= high, "clamp: low = ", low, " must not be above high = ", high);
  return Unary(UnaryOp::kClamp, x, low, high);
}
Tensor Pow(const Tensor& x, double exponent) {
  // One product, or one instruction, in place of a function. These agree with pow where it has
  // special values, except that pow(-infinity, 0.5) is infinity, and pow(-0.0, 0.5) is 0.
  if (exponent == 2) return Unary(UnaryOp::kSquare, x);
  if (exponent == 0.5) return Unary(UnaryOp::kSqrt, x);
  if (exponent == -1) return Unary(UnaryOp::kReciprocal, x);
  return Unary(UnaryOp::kPow, x, exponent);
}
Tensor LeakyRelu(const Tensor& x, double slope) { return Unary(UnaryOp::kLeakyRelu, x, slope); }
Tensor Elu(const Tensor& x, double alpha) { return Unary(UnaryOp::kElu, x, alpha); }
Tensor Softcap(const Tensor& x, double cap) {
  LS_CHECK(cap > 0, "softcap: the cap must be positive, got ", cap);
  return Unary(UnaryOp::kSoftcap, x, cap);
}

}  // namespace ops
}  // namespace lockstep
