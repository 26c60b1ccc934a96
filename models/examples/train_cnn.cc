// A convolutional network in a training loop of your own: reads digits that it draws (digits.h).
//
//   bazel run -c opt //models/examples:train_cnn [-- /ABSOLUTE/FOLDER]
//
// Saves the trained model in the folder, if given, as cnn.safetensors, which PyTorch can read.
#include <cstdio>
#include <string>

#include "lockstep/lockstep.h"
#include "models/examples/digits.h"

using namespace lockstep;
using examples::Digits;

constexpr int64_t kSize = 16;  // of an image

// The model: two stages of convolution, batch norm, ReLU and pooling, and a linear layer on top.
nn::Sequential& AddStage(nn::Sequential& model, int64_t in, int64_t out) {
  // A bias before a batch norm would have no effect.
  model.Add<nn::Conv2d>(in, out, 3, nn::Conv2dOptions{.padding = 1, .bias = false});
  model.Add<nn::BatchNorm2d>(out);
  model.Add<nn::Relu>();
  model.Add<nn::MaxPool2d>(2);
  return model;
}

void Build(nn::Sequential& model) {
  AddStage(AddStage(model, 1, 16), 16, 32);
  model.Add<nn::Flatten>();
  model.Add<nn::Linear>(32 * (kSize / 4) * (kSize / 4), 10);
}

// Under NoGrad, as anywhere outside of a step, batch norm uses its running statistics.
double Accuracy(nn::Sequential& model, const Digits& data) {
  const NoGrad no_grad;
  const Tensor right = ops::Equal(ops::ArgMax(model(data.images), {1}), data.labels);
  return ops::Mean(right.To(DType::kF32)).Item();
}

int main(int argc, char** argv) {
  constexpr int64_t kSteps = 300;
  nn::Sequential model;
  Build(model);
  model.Materialize(kCpu, /*seed=*/1);
  optim::Sgd sgd(model.Parameters(), {.momentum = 0.9, .nesterov = true, .weight_decay = 5e-4});
  const optim::LrSchedule lr({.lr = 0.1, .warmup = 20, .decay_steps = kSteps});
  StepState state(kCpu, /*seed=*/1);
  for (int64_t step = 0; step < kSteps; ++step) {
    const Digits batch(64, kSize, /*seed=*/100 + step);
    const auto training = sgd.BeginStep(state, step, lr(step));
    const Tensor loss = ops::SoftmaxCrossEntropy(model(batch.images), batch.labels);
    Backward(loss);
    sgd.Step(state);
    sgd.ZeroGrad();
    if (step % 50 == 0) std::printf("step %3ld  loss %.4f\n", static_cast<long>(step), loss.Item());
  }
  const Digits fresh(1000, kSize, /*seed=*/7);
  const double accuracy = Accuracy(model, fresh);
  std::printf("accuracy on new digits: %.1f%%\n", 100 * accuracy);
  if (argc > 1) {
    MakeDirectories(argv[1]);
    const std::string file = std::string(argv[1]) + "/cnn.safetensors";
    nn::SaveModule(model, file);  // weights and running statistics
    nn::Sequential copy;
    Build(copy);
    copy.Materialize(kCpu, /*seed=*/2);
    nn::LoadModule(copy, file);
    const double reloaded = Accuracy(copy, fresh);
    std::printf("after reloading from %s: %.1f%%\n", file.c_str(), 100 * reloaded);
    if (reloaded != accuracy) return 1;
  }
  return accuracy > 0.95 ? 0 : 1;
}
