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
  Tensor labels;  // i32 [n]
};

// n points alternating between two noisy spirals.
inline Points Spirals(int64_t n, uint64_t seed) {
  const Philox random(seed);
  std::vector<float> x;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t label = static_cast<int32_t>(i % 2);
    const float t = ToUniform(random.At(0, i));
    const float angle = 9.0f * t + 3.14159265f * static_cast<float>(label);
    x.push_back(t * std::cos(angle) + 0.04f * (ToUniform(random.At(1, i)) - 0.5f));
    x.push_back(t * std::sin(angle) + 0.04f * (ToUniform(random.At(2, i)) - 0.5f));
    labels.push_back(label);
  }
  return {Tensor::FromVector(x, {n, 2}), Tensor::FromVector(labels, {n})};
}

// The points at positions first, ..., first + n - 1 of an order.
template <class Order>
Points Pick(const Points& all, const Order& order, int64_t first, int64_t n) {
  const Points batch = {Tensor::Empty({n, 2}, DType::kF32), Tensor::Empty({n}, DType::kI32)};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = order[first + i];
    for (int64_t k = 0; k < 2; ++k) {
      batch.x.data<float>()[2 * i + k] = all.x.data<float>()[2 * at + k];
    }
    batch.labels.data<int32_t>()[i] = all.labels.data<int32_t>()[at];
  }
  return batch;
}

inline double Accuracy(Mlp& model, const Points& points) {
  const NoGrad no_grad;
  const std::vector<float> logits = model(points.x).ToVector<float>();
  const std::vector<int32_t> labels = points.labels.ToVector<int32_t>();
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    right += (logits[2 * i + 1] > logits[2 * i]) == labels[i];
  }
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

}  // namespace lockstep::examples
