// Logistic regression: finds the plane that separates two classes of points.
//
//   bazel run -c opt //models/examples:logistic_regression
#include <chrono>
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

int main() {
  constexpr int64_t kFeatures = 100, kExamples = 1000, kSteps = 10'000;
  constexpr double kLearningRate = 0.1;

  const Tensor true_w = ops::Randn({kFeatures}, /*seed=*/1);
  const Tensor x = ops::Randn({kExamples, kFeatures}, /*seed=*/2);
  const Tensor y = (ops::MatMul(x, true_w) > 0.0).To(DType::kF32);

  Tensor w = 1e-2 * ops::Randn({kFeatures}, /*seed=*/3);
  const auto loss = [&] { return ops::BceWithLogits(ops::MatMul(x, w), y); };

  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < kSteps; ++step) {
    w.SetRequiresGrad();
    Backward(loss());
    w = w.Detach() - kLearningRate * w.grad();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  const Tensor right = ops::Equal((ops::MatMul(x, w) > 0.0).To(DType::kF32), y);
  std::cout << "Loss " << loss().Item() << ", Accuracy " << ops::Mean(right.To(DType::kF32)).Item()
            << ", Throughput " << kSteps / seconds.count() << " (it/s).\n";
}
