// Trains an MLP with an op of this project on a device of the user's choice, and tells a launcher
// of errors:
//   mlp [cpu|sim|cuda] [STEPS]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "lockstep/lockstep.h"
#include "own/softsign.h"

using namespace lockstep;

namespace {

struct Mlp : Layer {
  explicit Mlp(int64_t hidden) : fc1(this, "fc1", 2, hidden), head(this, "head", hidden, 2) {}
  Tensor Forward(const Tensor& x) override { return head(own::Softsign(fc1(x))); }
  Child<nn::Linear> fc1, head;
};

// Points in the unit square, and whether the signs of their coordinates differ.
struct Points {
  Tensor x, labels;
};

Points Draw(int64_t n, uint64_t seed) {
  const Philox random(seed);
  std::vector<float> x;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < n; ++i) {
    x.push_back(2 * ToUniform(random.At(0, i)) - 1);
    x.push_back(2 * ToUniform(random.At(1, i)) - 1);
    labels.push_back((x[2 * i] > 0) != (x[2 * i + 1] > 0));
  }
  return {Tensor::FromVector(x, {n, 2}), Tensor::FromVector(labels, {n})};
}

int Train(Device device, int64_t steps) {
  Mlp model(32);
  model.Materialize(device, /*seed=*/1);
  optim::AdamW adamw(model.Parameters());
  StepState state(device, /*seed=*/1);
  double first = 0, last = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const Points batch = Draw(128, static_cast<uint64_t>(step));
    const auto training = adamw.BeginStep(state, step, /*lr=*/2e-2);
    const Tensor loss =
        ops::SoftmaxCrossEntropy(model(batch.x.To(device)), batch.labels.To(device));
    Backward(loss);
    adamw.Step(state);
    model.ZeroGrad();
    last = loss.Item();
    if (step == 0) first = last;
  }
  std::printf("mlp: loss %.4f, then %.4f\n", first, last);
  return last < (steps < 100 ? first : 0.15) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Device device = cuda::ParseDevice(argc > 1 ? argv[1] : "cpu");
    return Train(device, argc > 2 ? std::atoi(argv[2]) : 300);
  } catch (const std::exception& error) {
    dist::TellLauncher(error);
    std::fprintf(stderr, "mlp: %s\n", error.what());
    return 1;
  }
}
