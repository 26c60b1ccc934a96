// A small model with everything that data parallelism must cope with, and data for it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/autograd/engine.h"
#include "core/module.h"
#include "core/philox.h"
#include "kernels/binary/binary.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "kernels/unary/unary.h"
#include "nn/linear.h"

namespace lockstep::dist {

// 6 features to 3 classes. `shared` is used twice in each forward, `extra` only on request.
class ToyModel : public ModuleOf<Tensor(const Tensor&)> {
 public:
  explicit ToyModel(uint64_t seed = 1, int64_t hidden = 16, Device device = kCpu)
      : in(this, "in", std::make_shared<nn::Linear>(6, hidden)),
        shared(this, "shared", std::make_shared<nn::Linear>(hidden, hidden)),
        extra(this, "extra", std::make_shared<nn::Linear>(hidden, hidden)),
        head(this, "head", std::make_shared<nn::Linear>(hidden, 3)) {
    Materialize(device, seed);
  }

  bool use_extra = true;
  Child<Layer> in, shared, extra, head;

 protected:
  Tensor Forward(const Tensor& x) override {
    Tensor h = ops::Relu(in(x));
    h = ops::Relu(shared(h));
    if (use_extra) h = ops::Relu(extra(h));
    return head(ops::Relu(shared(h)));
  }
};

struct ToyBatch {
  Tensor x;       // f32 [n, 6]
  Tensor labels;  // i32 [n]
};

// Micro-batch `index`, of `rows` samples.
inline ToyBatch MakeToyBatch(int64_t index, int64_t rows = 4) {
  const Philox random(77);
  std::vector<float> x;
  std::vector<int32_t> labels;
  for (int64_t i = index * rows; i < (index + 1) * rows; ++i) {
    for (int64_t k = 0; k < 6; ++k) x.push_back(ToUniform(random.At(1 + i, k)) - 0.5f);
    labels.push_back(static_cast<int32_t>(random.At(0, i) % 3));
  }
  return {Tensor::FromVector(x, {rows, 6}), Tensor::FromVector(labels, {rows})};
}

// The gradient of the sum of the losses, divided by `divisor`.
inline void ToyBackward(ToyModel& model, const ToyBatch& batch, double divisor) {
  const Device device = model.Parameters()[0]->value().device();
  const Tensor loss =
      ops::SoftmaxCrossEntropy(model(batch.x.To(device)), batch.labels.To(device), Reduction::kSum);
  Backward(loss, Tensor::Full({}, 1 / divisor, DType::kF32, device));
}

inline std::vector<float> Flat(const std::vector<Tensor>& tensors) {
  std::vector<float> all;
  for (const Tensor& t : tensors) {
    const std::vector<float> values = t.ToVector<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

inline std::vector<float> GradientsOf(const Module& model) {
  std::vector<Tensor> grads;
  for (const auto& p : model.Parameters()) grads.push_back(p->grad());
  return Flat(grads);
}

inline std::vector<float> WeightsOf(const Module& model) {
  std::vector<Tensor> values;
  for (const auto& p : model.Parameters()) values.push_back(p->value());
  return Flat(values);
}

// Infinite if the sizes differ.
inline double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(double{a[i]} - double{b[i]}));
  }
  return difference;
}

}  // namespace lockstep::dist
