// The model and the data of train_mlp, train_spirals and train_spirals_parallel.
#pragma once

#include <cmath>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::examples {

// 2 features to 2 classes. The parameters are those of the children; Forward is ordinary code.
class Mlp : public Layer {
 public:
  explicit Mlp(int64_t hidden)
      : fc1_(this, "fc1", 2, hidden),
        fc2_(this, "fc2", hidden, hidden),
        head_(this, "head", hidden, 2) {}

 protected:
  Tensor Forward(const Tensor& x) override { return head_(ops::Relu(fc2_(ops::Relu(fc1_(x))))); }

 private:
  Child<nn::Linear> fc1_, fc2_, head_;
};

struct Points {
  Tensor x;       // f32 [n, 2]
  Tensor labels;  // i64 [n]
};

// n points alternating between two noisy spirals.
inline Points Spirals(int64_t n, uint64_t seed) {
  const Philox random(seed);
  std::vector<float> x;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t label = i % 2;
    const float t = ToUniform(random.At(0, i));
    const float angle = 9.0f * t + 3.14159265f * static_cast<float>(label);
    x.push_back(t * std::cos(angle) + 0.04f * (ToUniform(random.At(1, i)) - 0.5f));
    x.push_back(t * std::sin(angle) + 0.04f * (ToUniform(random.At(2, i)) - 0.5f));
    labels.push_back(label);
  }
  return {Tensor::FromVector(x, {n, 2}), Tensor::FromVector(labels, {n})};
}

// The points at positions first, ..., first + n - 1 of an order.
inline Points Pick(const Points& all, const data::DistributedSampler::Epoch& order, int64_t first,
                   int64_t n) {
  const Tensor items = order.Items(first, n);
  return {ops::IndexSelect(all.x, 0, items), ops::IndexSelect(all.labels, 0, items)};
}

inline double Accuracy(Mlp& model, const Points& points) {
  const NoGrad no_grad;
  const Tensor right = ops::Equal(ops::ArgMax(model(points.x), {1}), points.labels);
  return ops::Mean(right.To(DType::kF32)).Item();
}

}  // namespace lockstep::examples
