// A model, a data set and a training loop of your own: tells two spirals apart.
//
//   bazel run -c opt //models/examples:train_mlp
#include <cmath>
#include <cstdio>

#include "core/autograd/engine.h"
#include "core/philox.h"
#include "core/step_state.h"
#include "kernels/activation/activation.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "nn/linear.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/lr_schedule.h"

using namespace lockstep;

// The model: parameters come from its children; Forward is ordinary code.
class Mlp : public ModuleOf<Tensor(const Tensor&)> {
 public:
  explicit Mlp(int64_t hidden)
      : fc1_(this, "fc1", std::make_shared<nn::Linear>(2, hidden)),
        fc2_(this, "fc2", std::make_shared<nn::Linear>(hidden, hidden)),
        head_(this, "head", std::make_shared<nn::Linear>(hidden, 2)) {}

 protected:
  Tensor Forward(const Tensor& x) override { return head_(ops::Relu(fc2_(ops::Relu(fc1_(x))))); }

 private:
  Child<Layer> fc1_, fc2_, head_;
};

// The data: points f32 [n, 2] of two noisy spirals, and which of them each belongs to, i32 [n].
struct Batch {
  Tensor points, labels;
};

Batch Spirals(int64_t n, uint64_t seed) {
  const Philox random(seed);
  std::vector<float> points;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t label = static_cast<int32_t>(i % 2);
    const float t = ToUniform(random.At(0, i));
    const float angle = 9.0f * t + 3.14159265f * static_cast<float>(label);
    points.push_back(t * std::cos(angle) + 0.04f * (ToUniform(random.At(1, i)) - 0.5f));
    points.push_back(t * std::sin(angle) + 0.04f * (ToUniform(random.At(2, i)) - 0.5f));
    labels.push_back(label);
  }
  return {Tensor::FromVector(points, {n, 2}), Tensor::FromVector(labels, {n})};
}

double Accuracy(Mlp& model, const Batch& data) {
  const NoGrad no_grad;
  const std::vector<float> logits = model(data.points).ToVector<float>();
  const std::vector<int32_t> labels = data.labels.ToVector<int32_t>();
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i)
    right += (logits[2 * i + 1] > logits[2 * i]) == labels[i];
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

int main() {
  constexpr int64_t kSteps = 600;
  Mlp model(64);
  model.Materialize(kCpu, /*seed=*/1);
  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.01});
  const optim::LrSchedule lr({.lr = 1e-2, .warmup = 20, .decay_steps = kSteps});
  StepState state(kCpu, /*seed=*/1);
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = Spirals(128, /*seed=*/100 + step);
    const auto training = adamw.BeginStep(state, step, lr(step));
    const Tensor loss = ops::SoftmaxCrossEntropy(model(batch.points), batch.labels);
    Backward(loss);
    optim::ClipGradNorm(model.Parameters(), 1.0, state);
    adamw.Step(state);
    model.ZeroGrad();
    if (step % 100 == 0)
      std::printf("step %3ld  loss %.4f\n", static_cast<long>(step), loss.Item());
  }
  const double accuracy = Accuracy(model, Spirals(1000, /*seed=*/7));
  std::printf("accuracy on new points: %.1f%%\n", 100 * accuracy);
  return accuracy > 0.97 ? 0 : 1;
}
