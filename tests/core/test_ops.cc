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
void Write(const GradSink::Target& target, const F& f) {
  for (int64_t i = 0; i < target.tensor.numel(); ++i) {
    Set(target.tensor, i, (target.accumulate ? Get(target.tensor, i) : 0.0) + f(i));
  }
}

void Count(const std::vector<bool>& needs) {
  counters.first += needs[0];
  if (needs.size() > 1) counters.second += needs[1];
}

class AddNode : public Node {
 public:
  AddNode() : Node("test_add") {}
  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    Count(needs);
    for (size_t i = 0; i < 2; ++i) {
      if (needs[i]) sinks[i].Put(grads[0]);
    }
  }
  void Release() override {}
};

enum class MulOrder { kInTurn, kOpenFirst, kMixed };

class MulNode : public Node {
 public:
  MulNode(const Tensor& a, const Tensor& b, MulOrder order)
      : Node("test_mul"), a_(a, "a of test_mul"), b_(b, "b of test_mul"), order_(order) {}
  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    Count(needs);
    const Tensor dy = grads[0];
    const Tensor a = a_.Unpack(), b = b_.Unpack();
    const auto da = [&](int64_t i) { return Get(dy, i) * Get(b, i); };
    const auto db = [&](int64_t i) { return Get(dy, i) * Get(a, i); };
    if (order_ == MulOrder::kOpenFirst && needs[0] && needs[1]) {
      const auto target_a = sinks[0].Open(a), target_b = sinks[1].Open(b);
      Write(target_b, db);
      Write(target_a, da);
      return;
    }
    GradSink::Target target_a;
    if (needs[0]) target_a = sinks[0].Open(a);
    if (needs[0] && order_ != MulOrder::kMixed) Write(target_a, da);
    if (needs[1] && order_ == MulOrder::kMixed) {
      const Tensor grad = Tensor::EmptyLike(b);
      Write({grad, false}, db);
      sinks[1].Put(grad);
    } else if (needs[1]) {
      Write(sinks[1].Open(b), db);
    }
    if (needs[0] && order_ == MulOrder::kMixed) Write(target_a, da);
  }
  void Release() override {
    a_.Reset();
    b_.Reset();
  }

 private:
  SavedTensor a_, b_;
  MulOrder order_;
};

class ScaleNode : public Node {
 public:
  ScaleNode(const Tensor& x, double c) : Node("test_scale"), like_(x.Detach()), c_(c) {}
  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    Count(needs);
    Write(sinks[0].OpenAnyDType(like_), [&](int64_t i) { return Get(grads[0], i) * c_; });
  }
  void Release() override {}

 private:
  Tensor like_;
  double c_;
};

class SplitNode : public Node {
 public:
  explicit SplitNode(const Tensor& x) : Node("test_split"), like_(x.Detach()) {}
  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const int64_t half = grads[0].numel();
    Write(sinks[0].Open(like_),
          [&](int64_t i) { return i < half ? Get(grads[0], i) : Get(grads[1], i - half); });
  }
  void Release() override {}

 private:
  Tensor like_;
};

class SumNode : public Node {
 public:
  explicit SumNode(const Tensor& x) : Node("test_sum"), like_(x.Detach()) {}
  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    sinks[0].Put(grads[0].Expand(like_.shape()));
  }
  void Release() override {}

 private:
  Tensor like_;
};

Tensor MulIn(const Tensor& a, const Tensor& b, MulOrder order) {
  Tensor y = Tensor::EmptyLike(a);
  for (int64_t i = 0; i < y.numel(); ++i) Set(y, i, Get(a, i) * Get(b, i));
  if (NeedsGrad({&a, &b})) Record(std::make_shared<MulNode>(a, b, order), {&a, &b}, {&y});
  return y;
}

}  // namespace

Tensor Add(const Tensor& a, const Tensor& b) {
  Tensor y = Tensor::EmptyLike(a);
  for (int64_t i = 0; i < y.numel(); ++i) Set(y, i, Get(a, i) + Get(b, i));
  if (NeedsGrad({&a, &b})) Record(std::make_shared<AddNode>(), {&a, &b}, {&y});
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
  if (NeedsGrad({&x})) Record(std::make_shared<ScaleNode>(x, c), {&x}, {&y});
  return y;
}

std::pair<Tensor, Tensor> Split(const Tensor& x) {
  const Tensor detached = x.Detach();
  const int64_t half = x.dim(0) / 2;
  Tensor a = detached.Slice(0, 0, half).Clone(), b = detached.Slice(0, half, x.dim(0)).Clone();
  if (NeedsGrad({&x})) Record(std::make_shared<SplitNode>(x), {&x}, {&a, &b});
  return {a, b};
}

Tensor Sum(const Tensor& x) {
  Tensor y = Tensor::Empty({}, x.dtype());
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) sum += Get(x, i);
  Set(y, 0, sum);
  if (NeedsGrad({&x})) Record(std::make_shared<SumNode>(x), {&x}, {&y});
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
