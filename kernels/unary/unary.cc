#include "kernels/unary/unary.h"

#include "core/autograd/node.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"
#include "kernels/scale/scale.h"

namespace lockstep {
namespace {

const UnaryInfo& InfoOf(UnaryOp op) { return kUnaryInfo[static_cast<int>(op)]; }

class UnaryNode : public Node {
 public:
  UnaryNode(UnaryOp op, double a, double b, const Tensor& saved)
      : Node(InfoOf(op).name), op_(op), a_(a), b_(b) {
    if (saved.defined()) saved_ = SavedTensor(saved, "the input or result of a unary function");
  }

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    if (!saved_.defined()) return TimesNumber(InfoOf(op_).derivative, dy, sinks[0]);
    const Tensor saved = saved_.Unpack();
    const GradSink::Target dx = sinks[0].Open(saved);
    unary_backward(CurrentStream(saved.device()), op_, a_, b_, saved, dy, dx.tensor, dx.accumulate);
  }
  void Release() override { saved_.Reset(); }

 private:
  static void TimesNumber(double number, const Tensor& dy, GradSink& sink) {
    if (number == 1) return sink.Put(dy);
    if (number == 0) {  // a product would be NaN where dy is infinite
      return sink.Put(Tensor::Zeros({}, dy.dtype(), dy.device()).Expand(dy.shape()));
    }
    const GradSink::Target dx = sink.Open(dy);
    scale_slot(CurrentStream(dy.device()), dy, ScaleBy::kFactor, number, dx.tensor, dx.accumulate);
  }

  UnaryOp op_;
  double a_, b_;
  SavedTensor saved_;
};

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
  if (NeedsGrad({&x})) {
    const Tensor saved = info.saves == UnarySaves::kInput    ? input
                         : info.saves == UnarySaves::kResult ? y.Detach()
                                                             : Tensor();
    Record(std::make_shared<UnaryNode>(op, a, b, saved), {&x}, {&y});
  }
  // Not of those that need their result themselves.
  if (info.saves == UnarySaves::kInput && MayRedo(info.name)) {
    OfferRedo(y, [=, x = SavedTensor(input, "the input of a unary function")] {
      return Compute(op, a, b, x.Unpack());
    });
  }
  return y;
}

namespace ops {

Tensor Relu(const Tensor& x) { return Unary(UnaryOp::kRelu, x); }
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
