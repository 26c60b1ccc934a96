// A convolutional network that learns to read digits, as PyTorch's C++ example does on MNIST; these
// are drawn by the program (digits.h).
//
//   bazel run -c opt //models/examples:train_digits
#include <cmath>
#include <cstdio>
#include <iostream>

#include "lockstep/lockstep.h"
#include "models/examples/digits.h"

using namespace lockstep;

constexpr int64_t kTrainSize = 4096, kTestSize = 1000, kImageSize = 28;
constexpr int64_t kTrainBatchSize = 64, kTestBatchSize = 1000;
constexpr int64_t kEpochs = 6;
constexpr int64_t kLogInterval = 10;  // batches

struct Net : Layer {
  Tensor Forward(const Tensor& images) override {
    Tensor x = ops::Relu(pool(conv1(images)));
    x = ops::Relu(pool(conv2_drop(conv2(x))));
    x = ops::Relu(fc1(x.View({-1, 320})));
    return ops::LogSoftmax(fc2(fc1_drop(x)));
  }

  Child<nn::Conv2d> conv1{this, "conv1", 1, 10, /*kernel=*/5};
  Child<nn::Conv2d> conv2{this, "conv2", 10, 20, /*kernel=*/5};
  Child<nn::MaxPool2d> pool{this, "pool", 2};
  Child<nn::Dropout2d> conv2_drop{this, "conv2_drop", 0.5};
  Child<nn::Linear> fc1{this, "fc1", 320, 50};
  Child<nn::Dropout> fc1_drop{this, "fc1_drop", 0.5};
  Child<nn::Linear> fc2{this, "fc2", 50, 10};
};

void Train(int64_t epoch, Net& model, const examples::Digits& digits, optim::Optimizer& optimizer,
           StepState& state) {
  for (int64_t i = 0; i < kTrainSize; i += kTrainBatchSize) {
    const Tensor images = digits.images.Slice(0, i, i + kTrainBatchSize).To(state.device());
    const Tensor labels = digits.labels.Slice(0, i, i + kTrainBatchSize).To(state.device());
    const int64_t step = (epoch * kTrainSize + i) / kTrainBatchSize;
    const auto training = optimizer.BeginStep(state, step, /*lr=*/0.1);
    const Tensor loss = ops::NllLoss(model(images), labels);
    LS_CHECK(std::isfinite(loss.Item()), "the loss is ", loss.Item(), ": the step is too long");
    Backward(loss);
    optimizer.Step(state);
    optimizer.ZeroGrad();
    if (i / kTrainBatchSize % kLogInterval == 0) {
      std::printf("\rTrain epoch: %d [%4d/%4d] Loss: %.4f", static_cast<int>(epoch + 1),
                  static_cast<int>(i), static_cast<int>(kTrainSize), loss.Item());
    }
  }
}

void Test(Net& model, const examples::Digits& digits, Device device) {
  const NoGrad no_grad;
  double loss = 0, correct = 0;
  for (int64_t i = 0; i < kTestSize; i += kTestBatchSize) {
    const Tensor images = digits.images.Slice(0, i, i + kTestBatchSize).To(device);
    const Tensor labels = digits.labels.Slice(0, i, i + kTestBatchSize).To(device);
    const Tensor output = model(images);
    loss += ops::NllLoss(output, labels, Reduction::kSum).Item();
    correct += ops::Sum(ops::Equal(ops::ArgMax(output, {1}), labels).To(DType::kF32)).Item();
  }
  std::printf("\nTest set: Average loss: %.4f | Accuracy: %.3f\n", loss / kTestSize,
              correct / kTestSize);
}

int main() {
  const Device device = cuda::ParseDevice("auto");  // a GPU, or else the CPU
  std::cout << "Training on " << device << ".\n";
  Net model;
  model.Materialize(device, /*seed=*/1);
  const examples::Digits train_set(kTrainSize, kImageSize, /*seed=*/1);
  const examples::Digits test_set(kTestSize, kImageSize, /*seed=*/2);
  optim::Sgd optimizer(model.Parameters(), {.momentum = 0.5});
  StepState state(device, /*seed=*/1);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    Train(epoch, model, train_set, optimizer, state);
    Test(model, test_set, device);
  }
}
