#include "tests/core/test_ops.h"

#include "core/autograd/saved_tensor.h"

namespace lockstep::test {

thread_local Counters counters;

double Get(const Tensor& x, int64_t i) {
  switch (x.dtype()) {
    case DType::kF64:
      return x.data<double>()[i];
    case DType::kF32:
      return x.data<float>()[i];
    default:
      return static_cast<float>(x.data<BF16>()[i]);
  }
}

void Set(const Tensor& x, int64_t i, double value) {
  switch (x.dtype()) {
    case DType::kF64:
      x.data<double>()[i] = value;
      break;
    case DType::kF32:
      x.data<float>()[i] = static_cast<float>(value);
      break;
    default:
      x.data<BF16>()[i] = BF16(static_cast<float>(value));
  }
}

namespace {

template <class F>
void Write(const GradTarget& target, const F& f) {
  for (int64_t i = 0; i < target.tensor.numel(); ++i) {
    Set(target.tensor, i, (target.accumulate ? Get(target.tensor, i) : 0.0) + f(i));
  }
}

void Count(const Gradients& grads) {
  counters.first += grads.needs(0);
  if (grads.inputs() > 1) counters.second += grads.needs(1);
}

enum class MulOrder { kInTurn, kOpenFirst, kMixed };

void MulBackward(MulOrder order, const SavedTensors& saved, Gradients& grads) {
  Count(grads);
  const Tensor a = saved[0], b = saved[1], dy = grads[0];
  const auto da = [&](int64_t i) { return Get(dy, i) * Get(b, i); };
  const auto db = [&](int64_t i) { return Get(dy, i) * Get(a, i); };
  const GradTarget target_a = grads.Open(0);
  if (order == MulOrder::kOpenFirst && grads.needs(0) && grads.needs(1)) {
    const GradTarget target_b = grads.Open(1);
    Write(target_b, db);
    Write(target_a, da);
    return;
  }
  if (grads.needs(0) && order != MulOrder::kMixed) Write(target_a, da);
  if (grads.needs(1) && order == MulOrder::kMixed) {
    const Tensor grad = Tensor::EmptyLike(b);
    Write({grad, false}, db);
    grads.Put(1, grad);
  } else if (grads.needs(1)) {
    Write(grads.Open(1), db);
  }
  if (grads.needs(0) && order == MulOrder::kMixed) Write(target_a, da);
}

Tensor MulIn(const Tensor& a, const Tensor& b, MulOrder order) {
  Tensor y = Tensor::EmptyLike(a);
  for (int64_t i = 0; i < y.numel(); ++i) Set(y, i, Get(a, i) * Get(b, i));
  RecordOp(
      "test_mul", {&a, &b}, {&y}, {{a, "a of test_mul"}, {b, "b of test_mul"}},
      [order](const SavedTensors& saved, Gradients& grads) { MulBackward(order, saved, grads); });
  return y;
}

}  // namespace

Tensor Add(const Tensor& a, const Tensor& b) {
  Tensor y = Tensor::EmptyLike(a);
  for (int64_t i = 0; i < y.numel(); ++i) Set(y, i, Get(a, i) + Get(b, i));
  RecordOp("test_add", {&a, &b}, {&y}, {}, [](const SavedTensors&, Gradients& grads) {
    Count(grads);
    grads.PutAll(grads[0]);
  });
  return y;
}

Tensor Mul(const Tensor& a, const Tensor& b) { return MulIn(a, b, MulOrder::kInTurn); }
Tensor MulOpeningFirst(const Tensor& a, const Tensor& b) {
  return MulIn(a, b, MulOrder::kOpenFirst);
}
Tensor MulMixed(const Tensor& a, const Tensor& b) { return MulIn(a, b, MulOrder::kMixed); }

Tensor Scale(const Tensor& x, double c) {
  Tensor y = Tensor::EmptyLike(x);
  for (int64_t i = 0; i < y.numel(); ++i) Set(y, i, Get(x, i) * c);
  RecordOp("test_scale", {&x}, {&y}, {}, [c](const SavedTensors&, Gradients& grads) {
    Count(grads);
    Write(grads.OpenAnyDType(0), [&](int64_t i) { return Get(grads[0], i) * c; });
  });
  return y;
}

std::pair<Tensor, Tensor> Split(const Tensor& x) {
  const Tensor detached = x.Detach();
  const int64_t half = x.dim(0) / 2;
  Tensor a = detached.Slice(0, 0, half).Clone(), b = detached.Slice(0, half, x.dim(0)).Clone();
  RecordOp("test_split", {&x}, {&a, &b}, {}, [half](const SavedTensors&, Gradients& grads) {
    Write(grads.Open(0),
          [&](int64_t i) { return i < half ? Get(grads[0], i) : Get(grads[1], i - half); });
  });
  return {a, b};
}

Tensor Sum(const Tensor& x) {
  Tensor y = Tensor::Empty({}, x.dtype());
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) sum += Get(x, i);
  Set(y, 0, sum);
  RecordOp("test_sum", {&x}, {&y}, {}, [](const SavedTensors&, Gradients& grads) {
    grads.Put(0, grads[0].Expand(grads.spec(0).shape));
  });
  return y;
}

Tensor LeafOf(const std::vector<double>& values, DType dtype) {
  Tensor x = Tensor::FromVector(values, {std::ssize(values)}).To(dtype);
  return x.SetRequiresGrad();
}

std::vector<double> Values(const Tensor& x) {
  if (!x.defined()) return {};
  return x.Detach().To(DType::kF64).ToVector<double>();
}

}  // namespace lockstep::test
