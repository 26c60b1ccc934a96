// A program of a user, who has Lockstep as an archive: trains a small MLP, with a function of its
// own, to tell the quadrants apart whose signs differ.  mlp [DEVICE [STEPS]]
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;

// x / (1 + |x|)
const ops::Function softsign(
    "softsign",
    [](ops::Saved& saved, const Tensor& x) {
      saved.Keep(x);
      return x / (ops::Abs(x) + 1.0);
    },
    [](const ops::Saved& saved, const Tensor& dy) {
      return dy / ops::Square(ops::Abs(saved[0]) + 1.0);
    });

struct Mlp : Layer {
  explicit Mlp(int64_t hidden)
      : fc1(this, "fc1", 2, hidden),
        fc2(this, "fc2", hidden, hidden),
        head(this, "head", hidden, 2) {}
  Tensor Forward(const Tensor& x) override { return head(softsign(fc2(ops::Relu(fc1(x))))); }
  Child<nn::Linear> fc1, fc2, head;
};

int main(int argc, char** argv) {
  const Device device = cuda::ParseDevice(argc > 1 ? argv[1] : "cpu");
  const int64_t steps = argc > 2 ? std::atoi(argv[2]) : 300;
  constexpr int64_t kPoints = 128;
  Mlp model(32);
  model.Materialize(device, /*seed=*/1);
  optim::AdamW adamw(model.Parameters());
  StepState state(device, /*seed=*/1);
  double first = 0, last = 0;
  int64_t seen = 0;
  model.fc1->weight()->RegisterHook([&](const Tensor& grad) {
    seen += grad.shape() == Shape({32, 2});
  });
  for (int64_t step = 0; step < steps; ++step) {
    const Philox random(static_cast<uint64_t>(step));
    std::vector<float> x;
    std::vector<int32_t> labels;
    for (int64_t i = 0; i < kPoints; ++i) {
      x.push_back(2 * ToUniform(random.At(0, i)) - 1);
      x.push_back(2 * ToUniform(random.At(1, i)) - 1);
      labels.push_back((x[2 * i] > 0) != (x[2 * i + 1] > 0));
    }
    const auto training = adamw.BeginStep(state, step, /*lr=*/1e-2);
    const Tensor logits = model(Tensor::FromVector(x, {kPoints, 2}).To(device));
    const Tensor loss =
        ops::SoftmaxCrossEntropy(logits, Tensor::FromVector(labels, {kPoints}).To(device));
    Backward(loss);
    adamw.Step(state);
    model.ZeroGrad();
    last = loss.Item();
    if (step == 0) first = last;
  }
  std::printf("lockstep %s: loss %.9g, then %.9g\n", LOCKSTEP_VERSION, first, last);
  std::ostringstream printed;
  printed << ops::TopK(ops::Arange(5, DType::kF32, device), 2, 0).values;
  if (seen != steps || printed.str().find("[4., 3.]") == std::string::npos) {
    std::printf("%ld hooks ran, and the printed tensor is %s\n", static_cast<long>(seen),
                printed.str().c_str());
    return 1;
  }
  // An error is thrown in the library and caught here.
  try {
    model(Tensor::Zeros({1, 3}, DType::kF32, device));
    std::printf("an input of the wrong size was accepted\n");
    return 1;
  } catch (const Error& error) {
  }
  return last < (steps < 100 ? first : 0.1) ? 0 : 1;
}
