// A small convolutional network against PyTorch: the same weights and images give the same losses,
// gradient norms, running statistics and logits. tests/peers/make_cnn_parity.py made the goldens.
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "nn/activation.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "nn/state.h"
#include "nn/vision/batch_norm.h"
#include "nn/vision/conv2d.h"
#include "nn/vision/pooling.h"
#include "optim/clip.h"
#include "optim/sgd.h"

namespace lockstep {
namespace {

const std::string kFolder = "tests/testdata/cnn_parity";

// Both PyTorch's and Lockstep's names are those of a Sequential.
std::unique_ptr<nn::Sequential> MakeModel() {
  const auto conv = [](int64_t in, int64_t out, Size2 kernel, const nn::Conv2dOptions& options) {
    return std::make_shared<nn::Conv2d>(in, out, kernel, options);
  };
  const auto relu = [] { return std::make_shared<nn::Relu>(); };
  auto model = std::make_unique<nn::Sequential>();
  model->Add(conv(2, 6, {3, 5}, {.padding = {1, 2}, .bias = false}));
  model->Add(std::make_shared<nn::BatchNorm2d>(6));
  model->Add(relu());
  model->Add(
      std::make_shared<nn::MaxPool2d>(MaxPool2dOptions{.kernel = 3, .stride = 2, .padding = 1}));
  model->Add(conv(6, 8, 3, {.padding = 2, .dilation = 2, .groups = 2}));
  model->Add(std::make_shared<nn::BatchNorm2d>(
      8, nn::BatchNormOptions{.eps = 1e-3, .momentum = std::nullopt}));
  model->Add(relu());
  model->Add(std::make_shared<nn::AvgPool2d>(
      AvgPool2dOptions{.kernel = 2, .stride = 1, .padding = 1, .count_include_pad = false}));
  model->Add(conv(8, 8, 2, {.stride = 2}));
  model->Add(relu());
  model->Add(std::make_shared<nn::AdaptiveAvgPool2d>(Size2{2, 1}));
  model->Add(std::make_shared<nn::Flatten>());
  model->Add(std::make_shared<nn::Linear>(16, 12));
  model->Add(std::make_shared<nn::BatchNorm1d>(12, nn::BatchNormOptions{.affine = false}));
  model->Add(std::make_shared<nn::Linear>(12, 5));
  return model;
}

// |got - want| <= tolerance * (|want| + rms(want)) for all elements.
void ExpectClose(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  const auto doubles = [](const Tensor& t) {
    return t.Detach().To(DType::kF64).ToVector<double>();
  };
  const std::vector<double> a = doubles(got), b = doubles(want);
  ASSERT_EQ(got.shape(), want.shape()) << what;
  double squares = 0;
  for (const double w : b) squares += w * w;
  const double rms = std::sqrt(squares / static_cast<double>(b.size()));
  for (size_t i = 0; i < b.size(); ++i) {
    EXPECT_TRUE(std::abs(a[i] - b[i]) <= tolerance * (std::abs(b[i]) + rms))
        << what << "[" << i << "]: got " << a[i] << ", want " << b[i];
  }
}

TEST(CnnParity, TrainsAsPyTorchDoes) {
  const auto golden = Json::parse(ReadFile(kFolder + "/steps.json"));
  const auto setting = [&](const char* key) { return golden.at("settings").at(key).get<double>(); };
  const SafetensorsFile data = SafetensorsFile::Open(kFolder + "/data.safetensors");
  const Tensor x = data.Get("x").ToTensor(), y = data.Get("y").ToTensor();
  const auto batch = [](const Tensor& all, int64_t i) {
    Shape shape(std::span(all.shape().begin() + 1, all.shape().end()));
    return all.Slice(0, i, i + 1).View(shape);
  };
  const auto model = MakeModel();
  model->Materialize(kCpu, 0);
  nn::LoadModule(*model, kFolder + "/model.safetensors");
  optim::Sgd sgd(
      model->Parameters(),
      {.momentum = setting("momentum"), .nesterov = true, .weight_decay = setting("weight_decay")});
  StepState state(kCpu, 0);
  const auto& steps = golden.at("steps");
  ASSERT_EQ(steps.size(), 10u);
  for (size_t step = 0; step < steps.size(); ++step) {
    const auto training = sgd.BeginStep(state, static_cast<int64_t>(step), setting("lr"));
    const auto i = static_cast<int64_t>(step % 2);
    const Tensor loss = ops::SoftmaxCrossEntropy((*model)(batch(x, i)), batch(y, i));
    Backward(loss);
    optim::ClipGradNorm(sgd.parameters(), 0, state);
    sgd.Step(state);
    sgd.ZeroGrad();
    const double want = steps[step].at("loss"), norm = steps[step].at("grad_norm");
    // Two orders of f32 sums differ by this much after ten steps (2.1e-5 without fused
    // multiply-add).
    EXPECT_NEAR(loss.Item(), want, 4e-5 * want) << "step " << step;
    EXPECT_NEAR(state.Read().grad_norm, norm, 1e-4 * norm) << "step " << step;
  }
  // Weights, running statistics and the number of batches, under PyTorch's names.
  const SafetensorsFile last = SafetensorsFile::Open(kFolder + "/final.safetensors");
  const NamedTensors own = nn::StateOf(*model);
  EXPECT_EQ(own.size() + 1, last.entries().size());
  for (const auto& [name, tensor] : own) {
    ExpectClose(tensor, last.Get(name).ToTensor(), 2e-4, name);
  }
  const NoGrad no_grad;
  ExpectClose((*model)(batch(x, 0)), last.Get("logits").ToTensor(), 2e-4, "logits");
}

}  // namespace
}  // namespace lockstep
