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

// The sizes before the last two.
Shape Leading(const Shape& shape) {
  return Shape(std::span(shape.begin(), static_cast<size_t>(shape.ndim() - 2)));
}

// `matrices` with these sizes before the last two.
Shape WithLeading(const Shape& matrices, const Shape& leading) {
  Shape shape = leading;
  shape.push_back(matrices[-2]);
  shape.push_back(matrices[-1]);
  return shape;
}

class MatMulNode : public Node {
 public:
  // Factors as given, of shapes that broadcast to `leading`. a is kept for b's gradient and vice
  // versa: undefined where not needed.
  MatMulNode(const Tensor& a, const Tensor& b, const Shape& a_shape, const Shape& b_shape,
             const Shape& leading)
      : Node("matmul"),
        a_(a, "the first factor of matmul"),
        b_(b, "the second factor of matmul"),
        a_shape_(a_shape),
        b_shape_(b_shape),
        leading_(leading) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor grad = grads[0].Contiguous();
    const Stream stream = CurrentStream(grad.device());
    const bool merge = b_shape_.ndim() == 2;
    const Tensor dc = AsBatch(grad, merge);
    if (needs[0]) {
      const Tensor b = AsBatch(merge ? b_.Unpack() : Repeated(b_.Unpack()), merge);
      Write(a_shape_, WithLeading(a_shape_, leading_), grad, sinks[0],
            [&](const Tensor& da, bool accumulate) {
              matmul_slot(stream, {false, true, dc, b, AsBatch(da, merge), accumulate});
            });
    }
    if (needs[1]) {
      const Tensor a = AsBatch(Repeated(a_.Unpack()), merge);
      Write(b_shape_, merge ? b_shape_ : WithLeading(b_shape_, leading_), grad, sinks[1],
            [&](const Tensor& db, bool accumulate) {
              matmul_slot(stream, {true, false, a, dc, AsBatch(db, merge), accumulate});
            });
    }
  }

  void Release() override {
    a_.Reset();
    b_.Reset();
  }

 private:
  // With a copy for each of the batch.
  Tensor Repeated(const Tensor& x) const {
    return x.Expand(WithLeading(x.shape(), leading_)).Contiguous();
  }

  // Calls f(to, accumulate) to write the gradient of a factor of this shape, which was repeated to
  // `whole`. The terms of a factor that serves several of the batch are in f32 or wider, and
  // rounded once.
  template <class F>
  static void Write(const Shape& shape, const Shape& whole, const Tensor& grad, GradSink& sink,
                    const F& f) {
    if (shape.numel() == whole.numel()) {
      const GradSink::Target to = sink.OpenAnyDType(shape, grad.dtype(), grad.device());
      return f(to.tensor, to.accumulate);
    }
    const Tensor terms = Tensor::Empty(whole, AccumulationDType(grad.dtype()), grad.device());
    f(terms, false);
    const GradSink::Target to = sink.Open(shape, grad.dtype(), grad.device());
    SumExpanded(terms, 1, to.tensor, to.accumulate);
  }

  SavedTensor a_, b_;
  Shape a_shape_, b_shape_, leading_;
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

// The product of matrices whose leading dimensions broadcast to `leading`, or with b [K, N].
Tensor Product(const Tensor& a, const Tensor& b, const Shape& leading) {
  const bool merge = b.ndim() == 2;
  const Shape a_whole = WithLeading(a.shape(), leading);
  const Shape b_whole = merge ? b.shape() : WithLeading(b.shape(), leading);
  const Tensor first = a.Detach().Expand(a_whole).Contiguous();
  const Tensor second = b.Detach().Expand(b_whole).Contiguous();
  Shape shape = a_whole;
  shape[-1] = b.dim(-1);
  Tensor c = Tensor::Empty(shape, a.dtype(), a.device());
  matmul_slot(CurrentStream(a.device()), {false, false, AsBatch(first, merge),
                                          AsBatch(second, merge), AsBatch(c, merge), false});
  if (NeedsGrad({&a, &b})) {
    // What is repeated is kept as it was given.
    const Tensor kept_a = a.shape() == a_whole ? first : a.Detach();
    const Tensor kept_b = b.shape() == b_whole ? second : b.Detach();
    Record(std::make_shared<MatMulNode>(b.requires_grad() ? kept_a : Tensor(),
                                        a.requires_grad() ? kept_b : Tensor(), a.shape(), b.shape(),
                                        leading),
           {&a, &b}, {&c});
  }
  return c;
}

}  // namespace

Tensor MatMul(const Tensor& a, const Tensor& b) {
  Check(a, b);
  if (a.ndim() == 1) return MatMul(a.Unsqueeze(0), b).Squeeze(b.ndim() == 1 ? 0 : -2);
  if (b.ndim() == 1) return MatMul(a, b.Unsqueeze(1)).Squeeze(-1);
  const Shape rows = Leading(a.shape()), columns = Leading(b.shape());
  if (b.ndim() == 2) return Product(a, b, rows);
  if (rows != columns && columns.numel() == 1 && b.ndim() <= a.ndim()) {
    return Product(a, b.Reshape({b.dim(-2), b.dim(-1)}), rows);
  }
  return Product(a, b, BroadcastShape("matmul: leading dimensions", rows, columns));
}

}  // namespace lockstep::ops
