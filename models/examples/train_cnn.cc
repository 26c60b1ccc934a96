// A convolutional network in a training loop of your own: reads digits that the program draws.
//
//   bazel run -c opt //models/examples:train_cnn [-- /ABSOLUTE/FOLDER]
//
// Saves the trained model in the folder, if given, as cnn.safetensors, which PyTorch can read.
#include <algorithm>
#include <cstdio>
#include <string>

#include "lockstep/lockstep.h"

using namespace lockstep;

constexpr int64_t kSize = 16;  // of an image

// The data: noisy images f32 [n, 1, 16, 16] of digits in the style of pocket calculators, of
// varying place, size and brightness; and which digits they are, i32 [n].
struct Batch {
  Tensor images, labels;
};

// The seven segments: a rectangle each, in units of the digit's size, [top, left, bottom, right].
constexpr float kSegments[7][4] = {{0, 0, 0, 1},      {0, 1, 0.5f, 1}, {0.5f, 1, 1, 1},
                                   {1, 0, 1, 1},      {0.5f, 0, 1, 0}, {0, 0, 0.5f, 0},
                                   {0.5f, 0, 0.5f, 1}};
constexpr int kLit[10] = {0x3f, 0x06, 0x5b, 0x4f, 0x66, 0x6d, 0x7d, 0x07, 0x7f, 0x6f};

void Draw(int digit, const Philox& random, uint64_t stream, float* image) {
  const auto uniform = [&](uint64_t i) { return ToUniform(random.At(stream, i)); };
  const int64_t height = 8 + static_cast<int64_t>(5 * uniform(0));
  const int64_t width = 4 + static_cast<int64_t>(4 * uniform(1));
  const int64_t top = static_cast<int64_t>(static_cast<float>(kSize - height) * uniform(2));
  const int64_t left = static_cast<int64_t>(static_cast<float>(kSize - width) * uniform(3));
  const float ink = 0.5f + 0.5f * uniform(4);
  for (int64_t i = 0; i < kSize * kSize; ++i) image[i] = 0.5f * uniform(10 + i);
  for (int s = 0; s < 7; ++s) {
    if (!(kLit[digit] >> s & 1)) continue;
    const auto at = [](int64_t from, int64_t length, float share) {
      return from + static_cast<int64_t>(static_cast<float>(length - 1) * share);
    };
    const float* box = kSegments[s];
    for (int64_t y = at(top, height, box[0]); y <= at(top, height, box[2]); ++y) {
      for (int64_t x = at(left, width, box[1]); x <= at(left, width, box[3]); ++x) {
        image[y * kSize + x] += ink;
      }
    }
  }
}

Batch Digits(int64_t n, uint64_t seed) {
  const Philox random(seed);
  const Tensor images = Tensor::Empty({n, 1, kSize, kSize}, DType::kF32);
  const Tensor labels = Tensor::Empty({n}, DType::kI32);
  for (int64_t i = 0; i < n; ++i) {
    const int digit = static_cast<int>(random.At(0, i) % 10);
    labels.data<int32_t>()[i] = digit;
    Draw(digit, random, 1 + i, images.data<float>() + i * kSize * kSize);
  }
  return {images, labels};
}

// The model: two stages of convolution, batch norm, ReLU and pooling, and a linear layer on top.
nn::Sequential& AddStage(nn::Sequential& model, int64_t in, int64_t out) {
  // A bias before a batch norm would have no effect.
  model.Add(
      std::make_shared<nn::Conv2d>(in, out, 3, nn::Conv2dOptions{.padding = 1, .bias = false}));
  model.Add(std::make_shared<nn::BatchNorm2d>(out));
  model.Add(std::make_shared<nn::Relu>());
  model.Add(std::make_shared<nn::MaxPool2d>(2));
  return model;
}

void Build(nn::Sequential& model) {
  AddStage(AddStage(model, 1, 16), 16, 32);
  model.Add(std::make_shared<nn::Flatten>());
  model.Add(std::make_shared<nn::Linear>(32 * (kSize / 4) * (kSize / 4), 10));
}

// Under NoGrad, as anywhere outside of a step, batch norm uses its running statistics.
double Accuracy(nn::Sequential& model, const Batch& data) {
  const NoGrad no_grad;
  const std::vector<float> logits = model(data.images).ToVector<float>();
  const std::vector<int32_t> labels = data.labels.ToVector<int32_t>();
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto row = logits.begin() + static_cast<int64_t>(10 * i);
    right += std::max_element(row, row + 10) - row == labels[i];
  }
  return static_cast<double>(right) / static_cast<double>(labels.size());
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
    const Batch batch = Digits(64, /*seed=*/100 + step);
    const auto training = sgd.BeginStep(state, step, lr(step));
    const Tensor loss = ops::SoftmaxCrossEntropy(model(batch.images), batch.labels);
    Backward(loss);
    sgd.Step(state);
    sgd.ZeroGrad();
    if (step % 50 == 0) std::printf("step %3ld  loss %.4f\n", static_cast<long>(step), loss.Item());
  }
  const Batch fresh = Digits(1000, /*seed=*/7);
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
