// Linear regression: finds the weights that noisy labels were made with.
//
//   bazel run -c opt //models/examples:linear_regression
#include <chrono>
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

int main() {
  constexpr int64_t kFeatures = 100, kExamples = 1000, kSteps = 10'000;
  constexpr double kLearningRate = 0.01;

  const Tensor true_w = ops::Randn({kFeatures}, /*seed=*/1);
  const Tensor x = ops::Randn({kExamples, kFeatures}, /*seed=*/2);
  const Tensor y = ops::MatMul(x, true_w) + 1e-2 * ops::Randn({kExamples}, /*seed=*/3);

  Tensor w = 1e-2 * ops::Randn({kFeatures}, /*seed=*/4);
  const auto loss = [&] { return 0.5 * ops::MseLoss(ops::MatMul(x, w), y); };

  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < kSteps; ++step) {
    w.SetRequiresGrad();
    Backward(loss());
    w = w.Detach() - kLearningRate * w.grad();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  std::cout << "Loss " << loss().Item() << ", |w - w*| = " << ops::Norm(w - true_w).Item()
            << ", Throughput " << kSteps / seconds.count() << " (it/s).\n";
}
