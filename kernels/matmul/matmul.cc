#include "kernels/matmul/matmul.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "core/broadcast.h"

namespace lockstep::ops {
namespace {

// [..., R, C] as [batch, R, C]. One product of tall matrices where b serves all of a batch.
Tensor AsBatch(const Tensor& x, bool merge_rows) {
  int64_t batch = 1;
  for (int i = 0; i + 2 < x.ndim(); ++i) batch *= x.dim(i);
  const int64_t rows = x.dim(-2), columns = x.dim(-1);
  return x.Detach().View(merge_rows ? Shape{1, batch * rows, columns}
                                    : Shape{batch, rows, columns});
}

class MatMulNode : public Node {
 public:
  // a is kept for b's gradient and vice versa: undefined where not needed.
  MatMulNode(const Tensor& a, const Tensor& b, const Shape& a_shape, const Shape& b_shape)
      : Node("matmul"),
        a_(a, "the first factor of matmul"),
        b_(b, "the second factor of matmul"),
        a_shape_(a_shape),
        b_shape_(b_shape) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor grad = grads[0].Contiguous();
    const Stream stream = CurrentStream(grad.device());
    const bool merge = b_shape_.ndim() == 2;
    const Tensor dc = AsBatch(grad, merge);
    if (needs[0]) {
      const GradSink::Target da = sinks[0].OpenAnyDType(a_shape_, grad.dtype(), grad.device());
      matmul_slot(stream, {false, true, dc, AsBatch(b_.Unpack(), merge), AsBatch(da.tensor, merge),
                           da.accumulate});
    }
    if (needs[1]) {
      const GradSink::Target db = sinks[1].OpenAnyDType(b_shape_, grad.dtype(), grad.device());
      matmul_slot(stream, {true, false, AsBatch(a_.Unpack(), merge), dc, AsBatch(db.tensor, merge),
                           db.accumulate});
    }
  }

  void Release() override {
    a_.Reset();
    b_.Reset();
  }

 private:
  SavedTensor a_, b_;
  Shape a_shape_, b_shape_;
};

void Check(const Tensor& a, const Tensor& b) {
  LS_CHECK(a.defined() && IsFloating(a.dtype()) && a.ndim() >= 1,
           "matmul: a must be a floating tensor [..., M, K] or [K], got ", a.Describe());
  LS_CHECK(b.defined() && b.ndim() >= 1 && b.dim(b.ndim() == 1 ? 0 : -2) == a.dim(-1),
           "matmul: b must be [..., ", a.dim(-1), ", N] or [", a.dim(-1), "] for a of shape ",
           a.shape(), ", got ", b.Describe());
  LS_CHECK(b.dtype() == a.dtype() && b.device() == a.device(),
           "matmul: a and b must have the same dtype and device, got ", a.Describe(), " and ",
           b.Describe(), ": cast one of them");
}

// Of matrices whose leading dimensions are equal, or b [K, N].
Tensor Product(const Tensor& a, const Tensor& b) {
  const Tensor first = a.Detach().Contiguous(), second = b.Detach().Contiguous();
  Shape shape = a.shape();
  shape[-1] = b.dim(-1);
  Tensor c = Tensor::Empty(shape, a.dtype(), a.device());
  const bool merge = b.ndim() == 2;
  matmul_slot(CurrentStream(a.device()), {false, false, AsBatch(first, merge),
                                          AsBatch(second, merge), AsBatch(c, merge), false});
  if (NeedsGrad({&a, &b})) {
    Record(
        std::make_shared<MatMulNode>(b.requires_grad() ? first : Tensor(),
                                     a.requires_grad() ? second : Tensor(), a.shape(), b.shape()),
        {&a, &b}, {&c});
  }
  return c;
}

// The sizes before the last two.
Shape Leading(const Tensor& x) {
  return Shape(std::span(x.shape().begin(), static_cast<size_t>(x.ndim() - 2)));
}

Tensor WithLeading(const Tensor& x, const Shape& leading) {
  Shape shape = leading;
  shape.push_back(x.dim(-2));
  shape.push_back(x.dim(-1));
  return x.Expand(shape);
}

}  // namespace

Tensor MatMul(const Tensor& a, const Tensor& b) {
  Check(a, b);
  if (a.ndim() == 1) return MatMul(a.Unsqueeze(0), b).Squeeze(b.ndim() == 1 ? 0 : -2);
  if (b.ndim() == 1) return MatMul(a, b.Unsqueeze(1)).Squeeze(-1);
  const Shape rows = Leading(a), columns = Leading(b);
  if (b.ndim() == 2 || rows == columns) return Product(a, b);
  if (columns.numel() == 1 && b.ndim() <= a.ndim()) {
    return Product(a, b.Reshape({b.dim(-2), b.dim(-1)}));
  }
  const Shape leading = BroadcastShape("matmul: leading dimensions", rows, columns);
  return Product(WithLeading(a, leading), WithLeading(b, leading));
}

}  // namespace lockstep::ops
