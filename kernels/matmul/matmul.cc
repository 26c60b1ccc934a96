#include "kernels/matmul/matmul.h"

#include "core/autograd/node.h"
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

// With a copy for each of the batch.
Tensor Repeated(const Tensor& x, const Shape& leading) {
  return x.Expand(WithLeading(x.shape(), leading)).Contiguous();
}

// Calls f(to, accumulate) to write the gradient of a factor, which was repeated to `whole`. The
// terms of a factor that serves several of the batch are in f32 or wider, and rounded once.
template <class F>
void Write(size_t input, const Shape& whole, Gradients& grads, const F& f) {
  const auto& [shape, dtype, device] = grads.spec(input);
  if (shape.numel() == whole.numel()) {
    const auto [to, accumulate] = grads.OpenAnyDType(input);
    return f(to, accumulate);
  }
  const Tensor terms = Tensor::Empty(whole, AccumulationDType(dtype), device);
  f(terms, false);
  const auto [to, accumulate] = grads.Open(input);
  SumExpanded(terms, 1, to, accumulate);
}

// Saved are a and b as given, of shapes that broadcast to `leading`.
void Backward(const Shape& leading, const SavedTensors& saved, Gradients& grads) {
  const Shape &a_shape = grads.spec(0).shape, &b_shape = grads.spec(1).shape;
  const Stream stream = CurrentStream(grads[0].device());
  const bool merge = b_shape.ndim() == 2;
  const Tensor dc = AsBatch(grads[0], merge);
  if (grads.needs(0)) {
    const Tensor b = AsBatch(merge ? saved[1] : Repeated(saved[1], leading), merge);
    Write(0, WithLeading(a_shape, leading), grads, [&](const Tensor& da, bool accumulate) {
      matmul_slot(stream, {false, true, dc, b, AsBatch(da, merge), accumulate});
    });
  }
  if (grads.needs(1)) {
    const Tensor a = AsBatch(Repeated(saved[0], leading), merge);
    Write(1, merge ? b_shape : WithLeading(b_shape, leading), grads,
          [&](const Tensor& db, bool accumulate) {
            matmul_slot(stream, {true, false, a, dc, AsBatch(db, merge), accumulate});
          });
  }
}

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
  // A factor is kept for the other's gradient. What is repeated is kept as it was given.
  const Tensor kept_a = a.shape() == a_whole ? first : a,
               kept_b = b.shape() == b_whole ? second : b;
  RecordOp(
      "matmul", {&a, &b}, {&c},
      {{b.requires_grad() ? kept_a : Tensor(), "the first factor of matmul"},
       {a.requires_grad() ? kept_b : Tensor(), "the second factor of matmul"}},
      [leading](const SavedTensors& saved, Gradients& grads) { Backward(leading, saved, grads); });
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
