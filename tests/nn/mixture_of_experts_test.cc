// Mixtures of experts: against plain loops, with their losses, loads and biases.
#include "nn/mixture/mixture_of_experts.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/engine.h"
#include "core/autograd/root_gradient.h"
#include "core/cuda/blaslt.h"
#include "core/cuda/device.h"
#include "core/step_state.h"
#include "kernels/linear/linear.h"
#include "kernels/router_loss/router_loss.h"
#include "nn/mixture/expert_loads.h"
#include "nn/recompute.h"
#include "nn/transformer_block.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::CheckGradients;
using test::Matrix;
using test::MessageOf;
using test::ParameterOf;
using test::RandomTensor;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kWidth = 12, kExperts = 5;

TransformerOptions Options(const MixtureOptions& mixture,
                           MlpActivation activation = MlpActivation::kSwiGlu) {
  TransformerOptions o{
      .n_embd = kWidth, .n_head = 3, .init_std = 0.5, .residual_std = 0.5, .n_inner = 8};
  o.activation = activation;
  o.mixture = mixture;
  return o;
}

MixtureOptions Softmax() { return {.n_expert = kExperts, .n_expert_used = 2, .n_inner = 7}; }
MixtureOptions Sigmoid() {
  MixtureOptions m = Softmax();
  m.router = {.score = RouterScore::kSigmoid, .scale = 1.5};
  m.bias_rate = 0.25;
  return m;
}
MixtureOptions WithShared() {
  MixtureOptions m = Softmax();
  m.router.normalise = false;
  m.n_shared = 9;
  m.shared_gate = true;
  return m;
}

// Expert e of stacked weights [E, n, k], as a matrix.
Matrix ExpertOf(const Module& module, const std::string& path, int64_t e, int64_t n, int64_t k) {
  const Matrix all = ParameterOf(module, path);
  Matrix one{n, k, {}};
  one.data.assign(all.data.begin() + e * n * k, all.data.begin() + (e + 1) * n * k);
  return one;
}

// SwiGLU of [rows, 2 f].
Matrix SwiGlu(const Matrix& x) {
  Matrix y{x.rows, x.cols / 2, std::vector<double>(static_cast<size_t>(x.rows * x.cols / 2))};
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t i = 0; i < y.cols; ++i) {
      y(r, i) = x(r, i) / (1 + std::exp(-x(r, i))) * x(r, i + y.cols);
    }
  }
  return y;
}

Matrix MlpReference(const Matrix& x, const Matrix& in, const Matrix& out,
                    MlpActivation activation) {
  const Matrix inner = test::LinearReference(x, in, {});
  return test::LinearReference(
      activation == MlpActivation::kSwiGlu ? SwiGlu(inner) : test::GeluReference(inner), out, {});
}

double Logistic(double x) { return 1 / (1 + std::exp(-x)); }

// One token at a time, each expert by itself.
Matrix Reference(const Module& m, const TransformerOptions& o, const Matrix& x) {
  const MixtureOptions& mix = o.mixture;
  const int64_t f = mix.n_inner, in = o.activation == MlpActivation::kSwiGlu ? 2 * f : f;
  const Matrix logits = test::LinearReference(x, ParameterOf(m, "router.weight"), {});
  std::vector<double> bias(kExperts);
  for (const auto& [name, buffer] : m.NamedBuffers())
    bias = buffer.To(DType::kF64).ToVector<double>();
  Matrix y{x.rows, kWidth, std::vector<double>(static_cast<size_t>(x.rows * kWidth))};
  for (int64_t t = 0; t < x.rows; ++t) {
    std::vector<double> score(kExperts);
    double all = 0, chosen = 0;
    for (int64_t e = 0; e < kExperts; ++e) all += std::exp(logits(t, e));
    for (int64_t e = 0; e < kExperts; ++e) {
      score[e] = mix.router.score == RouterScore::kSigmoid ? Logistic(logits(t, e))
                                                           : std::exp(logits(t, e)) / all;
    }
    std::vector<int64_t> order = {0, 1, 2, 3, 4};
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return score[a] + bias[a] > score[b] + bias[b]; });
    for (int64_t j = 0; j < mix.n_expert_used; ++j) chosen += score[order[j]];
    Matrix token{1, kWidth, {}};
    token.data.assign(x.data.begin() + t * kWidth, x.data.begin() + (t + 1) * kWidth);
    for (int64_t j = 0; j < mix.n_expert_used; ++j) {
      const int64_t e = order[j];
      const double gate = mix.router.scale * score[e] / (mix.router.normalise ? chosen : 1);
      const Matrix of_expert =
          MlpReference(token, ExpertOf(m, "experts.c_fc.weight", e, in, kWidth),
                       ExpertOf(m, "experts.c_proj.weight", e, kWidth, f), o.activation);
      for (int64_t i = 0; i < kWidth; ++i) y(t, i) += gate * of_expert(0, i);
    }
    if (mix.n_shared == 0) continue;
    const Matrix shared = MlpReference(token, ParameterOf(m, "shared.c_fc.weight"),
                                       ParameterOf(m, "shared.c_proj.weight"), o.activation);
    const double gate =
        Logistic(test::LinearReference(token, ParameterOf(m, "shared_gate.weight"), {})(0, 0));
    for (int64_t i = 0; i < kWidth; ++i) y(t, i) += gate * shared(0, i);
  }
  return y;
}

class MixtureTest : public testing::TestWithParam<std::pair<const char*, MixtureOptions>> {};

TEST_P(MixtureTest, ForwardIsThatOfPlainLoops) {
  for (const MlpActivation activation : {MlpActivation::kSwiGlu, MlpActivation::kGelu}) {
    const TransformerOptions options = Options(GetParam().second, activation);
    MixtureOfExperts module(options);
    module.Materialize(kCpu, 3, DType::kF64);
    for (const auto& [name, buffer] : module.NamedBuffers()) {
      buffer.CopyFrom(RandomTensor(buffer.shape(), 5));
    }
    const Tensor x = RandomTensor({2, 9, kWidth}, 7);
    const Tensor y = ops::Complete(module(x));
    EXPECT_EQ(y.shape(), x.shape());
    EXPECT_LT(test::Difference(test::ToMatrix(y), Reference(module, options, test::ToMatrix(x))),
              1e-12);
  }
}

TEST_P(MixtureTest, GradientsAreThoseOfDifferences) {
  MixtureOfExperts module(Options(GetParam().second));
  module.Materialize(kCpu, 3, DType::kF64);
  Tensor x = RandomTensor({2, 4, kWidth}, 7);
  x.SetRequiresGrad();
  auto tensors = test::ParametersToCheck(module);
  tensors.emplace_back("x", x);
  CheckGradients(tensors, [&] { return test::Project(ops::Complete(module(x))); });
}

INSTANTIATE_TEST_SUITE_P(Routers, MixtureTest,
                         testing::Values(std::pair("softmax", Softmax()),
                                         std::pair("sigmoid", Sigmoid()),
                                         std::pair("shared", WithShared())),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(Mixture, NamesItsParameters) {
  EXPECT_THAT(test::Describe(MixtureOfExperts(Options(Sigmoid()))),
              ElementsAre("router.weight [5, 12] decays", "experts.c_fc.weight [5, 14, 12] decays",
                          "experts.c_proj.weight [5, 12, 7] decays", "router.bias f32[5] buffer"));
  EXPECT_THAT(
      test::Describe(MixtureOfExperts(Options(WithShared(), MlpActivation::kGelu))),
      ElementsAre("router.weight [5, 12] decays", "experts.c_fc.weight [5, 7, 12] decays",
                  "experts.c_proj.weight [5, 12, 7] decays", "shared.c_fc.weight [9, 12] decays",
                  "shared.c_proj.weight [12, 9] decays", "shared_gate.weight [1, 12] decays"));
}

TEST(Mixture, RefusesWhatDoesNotFit) {
  MixtureOptions m = Softmax();
  m.n_expert_used = 6;
  EXPECT_THAT(MessageOf([&] { MixtureOfExperts{Options(m)}; }),
              HasSubstr("n_expert = 5, n_expert_used = 6"));
  m = Softmax();
  m.bias_rate = 1;
  EXPECT_THAT(MessageOf([&] { MixtureOfExperts{Options(m)}; }), HasSubstr("is for sigmoid scores"));
  m = Softmax();
  m.shared_gate = true;
  EXPECT_THAT(MessageOf([&] { MixtureOfExperts{Options(m)}; }),
              HasSubstr("without a shared expert cannot have its gate"));
}

// ---- The losses of the router. ----

MixtureOptions WithLosses() {
  MixtureOptions m = Softmax();
  m.balance_loss = 0.3;
  m.z_loss = 0.2;
  return m;
}

std::vector<double> RouterGradient(Module& module) {
  for (const auto& [name, p] : module.NamedParameters()) {
    if (name != "router.weight") continue;
    const std::vector<double> grad = p->grad().To(DType::kF64).ToVector<double>();
    module.ZeroGrad();
    return grad;
  }
  return {};
}

TEST(AuxiliaryLoss, JoinsTheBackwardWithTheRootGradient) {
  MixtureOfExperts module(Options(WithLosses())), plain(Options(Softmax()));
  for (Module* m : {static_cast<Module*>(&module), static_cast<Module*>(&plain)}) {
    m->Materialize(kCpu, 3, DType::kF64);
  }
  const Tensor x = RandomTensor({2, 6, kWidth}, 7);
  constexpr double kRoot = 0.37;
  const auto gradient = [&](MixtureOfExperts& m) {
    Backward(test::Project(ops::Complete(m(x))), Tensor::Full({}, kRoot, DType::kF64));
    return RouterGradient(m);
  };
  const std::vector<double> with = gradient(module), without = gradient(plain);
  // The same loss by itself.
  Tensor weight = RandomTensor({kExperts, kWidth}, 1);
  for (const auto& [name, p] : plain.NamedParameters()) {
    if (name == "router.weight") weight.CopyFrom(p->value().Detach());
  }
  weight.SetRequiresGrad();
  const Tensor logits = ops::Linear(x, weight);
  const Tensor experts = ops::TopExperts(logits.View({12, kExperts}), {}, 2, RouterScore::kSoftmax);
  Backward(ops::RouterLoss(logits, experts, {.balance = 0.3, .z = 0.2}),
           Tensor::Full({}, kRoot, DType::kF64));
  const std::vector<double> alone = weight.grad().ToVector<double>();
  double largest = 0;
  for (size_t i = 0; i < with.size(); ++i) {
    EXPECT_NEAR(with[i] - without[i], alone[i], 1e-12);
    largest = std::max(largest, std::abs(alone[i]));
  }
  EXPECT_GT(largest, 0.01);
}

TEST(AuxiliaryLoss, NeedsARootGradient) {
  MixtureOfExperts module(Options(WithLosses()));
  module.Materialize(kCpu, 3);
  const Tensor x = RandomTensor({1, 6, kWidth}, 7, DType::kF32);
  const Tensor y = ops::Complete(module(x));
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y, Tensor::Full(y.shape(), 1, DType::kF32)); }),
              HasSubstr("must be given the root gradient of a scalar loss"));
  // Whether this is a mean, beside which sums over tokens would be too strong, is not known.
  const Tensor mean = test::Project(ops::Complete(module(x)).To(DType::kF64));
  EXPECT_THAT(MessageOf<Error>([&] { Backward(mean); }), HasSubstr("1.0 / tokens"));
  const Tensor again = ops::Complete(module(x));
  module.ZeroGrad();
  const RootGradientScope scope(Tensor::Full({}, 1, DType::kF32));
  Backward(again, Tensor::Full(again.shape(), 1, DType::kF32));
}

// Whatever other products may do: a score that is rounded sends its token elsewhere.
TEST(ExpertRouter, ScoresInFullF32) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "this needs a GPU, simulated or real";
  const Device device{DeviceType::kCuda, 0};
  MixtureOptions mixture = Softmax();
  mixture.z_loss = 0.3;
  ExpertRouter router(Options(mixture));
  router.Materialize(device, 3);
  Tensor x = RandomTensor({1, 40, kWidth}, 7, DType::kF32).To(device);
  x.SetRequiresGrad();
  const auto results = [&](bool tf32) {
    cuda::AllowTf32(tf32);
    x.ZeroGrad();
    router.ZeroGrad();
    const Routes routes = router(x);
    Backward(test::Project(routes.gates.To(kCpu).To(DType::kF64)),
             Tensor::Full({}, 1, DType::kF64));
    cuda::AllowTf32(false);
    return std::vector{routes.gates.ToVector<float>(), x.grad().ToVector<float>(),
                       router.Parameters()[0]->grad().ToVector<float>()};
  };
  EXPECT_EQ(results(true), results(false));
}

// ---- Loads, and what recomputation must not do twice. ----

class Recomputing : public test::DeviceTest {};

TEST_P(Recomputing, KeepsTheChoiceAndCountsOnce) {
  const Device device = GetParam();
  MixtureOptions mixture = Sigmoid();
  mixture.balance_loss = 0.1;
  const auto gradients = [&](bool recompute) {
    const auto block = std::make_shared<TransformerBlock>(Options(mixture));
    std::shared_ptr<Block> item = block;
    if (recompute) item = Recompute(block);
    item->Materialize(device, 3, DType::kF32);
    ExpertLoads loads(*item);
    const StepState state(device, 1);
    const TrainingScope scope(state);
    Tensor x = RandomTensor({2, 16, kWidth}, 7, DType::kF32).To(device);
    x.SetRequiresGrad();
    const Tensor loss = test::Project(Complete((*item)(x)).To(kCpu).To(DType::kF64));
    // Between forward and backward everything about the choice changes.
    for (const auto& [name, bias] : item->NamedBuffers()) {
      bias.CopyFrom(RandomTensor(bias.shape(), 9, DType::kF32, -4, 4));
    }
    Backward(loss, Tensor::Full({}, 1, DType::kF64));
    const LayerLoads load = ToLoads(loads.Take());
    double total = 0;
    for (const double l : load.at(0)) total += l;
    EXPECT_EQ(total, 2 * 16 * 2);
    std::vector<std::vector<float>> all = {x.grad().ToVector<float>()};
    for (const auto& p : item->Parameters()) all.push_back(p->grad().ToVector<float>());
    return all;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

// Of a step that was not finished.
TEST(ExpertLoads, WhatIsDiscardedDoesNotCount) {
  const auto block = std::make_shared<TransformerBlock>(Options(Sigmoid()));
  block->Materialize(kCpu, 3, DType::kF32);
  ExpertLoads loads(*block);
  loads.Discard();
  const StepState state(kCpu, 1);
  const TrainingScope scope(state);
  const Tensor x = RandomTensor({2, 16, kWidth}, 7, DType::kF32);
  for (int forward = 0; forward < 2; ++forward) {
    loads.Discard();
    Complete((*block)(x));
  }
  double total = 0;
  const LayerLoads load = ToLoads(loads.Take());
  for (const double l : load.at(0)) total += l;
  EXPECT_EQ(total, 2 * 16 * 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, Recomputing, test::Devices());

TEST(ExpertLoads, MoveBiasesTowardsAnEvenLoad) {
  MixtureOfExperts module(Options(Sigmoid()));
  module.Materialize(kCpu, 3);
  ExpertLoads loads(module);
  EXPECT_TRUE(loads.has_biases());
  EXPECT_THAT(MessageOf([&] { loads.Take(); }), HasSubstr("take it after a forward"));
  loads.MoveBiases({{10, 0, 6, 7, 7}});
  EXPECT_THAT(module.NamedBuffers().at(0).second.ToVector<float>(),
              ElementsAre(-0.25f, 0.25f, 0, -0.25f, -0.25f));
  const LoadSpread spread = SpreadOf({{10, 0, 6, 7, 7}, {5, 6, 4, 5, 5}});
  EXPECT_DOUBLE_EQ(spread.most, 10 / 6.0);
  EXPECT_DOUBLE_EQ(spread.least, 0);
}

TEST(ExpertLoads, BiasesOfFrozenRoutersStay) {
  MixtureOfExperts module(Options(Sigmoid()));
  module.Materialize(kCpu, 3);
  for (const auto& p : module.Parameters()) p->SetTrainable(false);
  const ExpertLoads loads(module);
  EXPECT_FALSE(loads.has_biases());
  loads.MoveBiases({{10, 0, 6, 7, 7}});
  EXPECT_THAT(module.NamedBuffers().at(0).second.ToVector<float>(), testing::Each(0));
}

TEST(ExpertLoads, CountOnlyTraining) {
  MixtureOfExperts module(Options(Softmax()));
  module.Materialize(kCpu, 3);
  ExpertLoads loads(module);
  const Tensor x = RandomTensor({1, 8, kWidth}, 7, DType::kF32);
  const StepState state(kCpu, 1);
  const TrainingScope scope(state);
  module(x);
  module(x);
  {
    const NoGrad no_grad;
    module(x);
  }
  double total = 0;
  const LayerLoads counted = ToLoads(loads.Take()), none = ToLoads(loads.Take());
  for (const double l : counted.at(0)) total += l;
  EXPECT_EQ(total, 2 * 8 * 2);
  EXPECT_THAT(none.at(0), testing::Each(0));
}

}  // namespace
}  // namespace lockstep::nn
