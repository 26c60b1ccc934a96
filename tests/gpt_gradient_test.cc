// The gradient of a whole GPT in fp64, against central differences along random directions.
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/engine.h"
#include "core/philox.h"
#include "kernels/scale/scale.h"
#include "models/gpt/gpt.h"

namespace lockstep::models {
namespace {

class GptGradient : public testing::TestWithParam<GptConfig> {
 protected:
  GptGradient() : model_(GetParam()) {
    model_.Materialize(kCpu, 11, DType::kF64);
    const int64_t v = GetParam().vocab_size;
    std::vector<int32_t> ids, targets;
    for (uint64_t i = 0; i < 14; ++i) {
      ids.push_back(static_cast<int32_t>(Philox(3).At(0, i) % v));
      targets.push_back(i == 5 ? -1 : static_cast<int32_t>(Philox(3).At(1, i) % v));
    }
    ids_ = Tensor::FromVector<int32_t>(ids, {2, 7});
    targets_ = Tensor::FromVector<int32_t>(targets, {2, 7});
  }

  Tensor Loss() { return model_.Loss(ids_, targets_) / 13; }

  Gpt model_;
  Tensor ids_, targets_;
};

// direction[i] is uniform in [-1, 1); values are moved by `step` times it.
void Move(const Parameter& p, uint64_t stream, double step) {
  double* x = p.value().data<double>();
  for (int64_t i = 0; i < p.value().numel(); ++i) {
    x[i] += step * (2 * double{ToUniform(Philox(17).At(stream, i))} - 1);
  }
}

double Along(const Parameter& p, uint64_t stream) {
  const double* g = p.grad().data<double>();
  double sum = 0;
  for (int64_t i = 0; i < p.value().numel(); ++i) {
    sum += g[i] * (2 * double{ToUniform(Philox(17).At(stream, i))} - 1);
  }
  return sum;
}

TEST_P(GptGradient, OfEveryParameterAlongRandomDirections) {
  Backward(Loss());
  const NoGrad no_grad;
  constexpr double kStep = 1e-5;
  for (const auto& p : model_.Parameters()) {
    ASSERT_TRUE(p->grad().defined()) << p->name();
    for (uint64_t direction = 0; direction < 3; ++direction) {
      const std::vector<double> before = p->value().ToVector<double>();
      Move(*p, direction, kStep);
      const double above = Loss().Item();
      Move(*p, direction, -2 * kStep);
      const double below = Loss().Item();
      std::copy(before.begin(), before.end(), p->value().data<double>());
      const double expected = (above - below) / (2 * kStep);
      EXPECT_NEAR(Along(*p, direction), expected, 1e-9 + 1e-6 * std::abs(expected))
          << p->name() << " direction " << direction;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpt2, GptGradient,
    testing::Values(
        GptConfig{.vocab_size = 13, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 12},
        GptConfig{.vocab_size = 13,
                  .block_size = 7,
                  .n_layer = 2,
                  .n_head = 3,
                  .n_embd = 15,
                  .bias = false,
                  .tie_embeddings = false},
        GptConfig{.vocab_size = 13,
                  .block_size = 8,
                  .n_layer = 1,
                  .n_head = 2,
                  .n_embd = 12,
                  .loss_chunk = 4},
        GptConfig{.vocab_size = 13,
                  .block_size = 8,
                  .n_layer = 1,
                  .n_head = 2,
                  .n_embd = 12,
                  .tie_embeddings = false,
                  .loss_chunk = 5}));

constexpr GptConfig kLlama{.vocab_size = 13,
                           .block_size = 8,
                           .n_layer = 2,
                           .n_head = 4,
                           .n_embd = 16,
                           .bias = false,
                           .tie_embeddings = false,
                           .n_kv_head = 2,
                           .n_inner = 20,
                           .norm = NormKind::kRmsNorm,
                           .activation = nn::MlpActivation::kSwiGlu,
                           .position = Position::kRope};

constexpr GptConfig With(GptConfig config, nn::MlpActivation activation) {
  config.activation = activation;
  return config;
}

constexpr GptConfig TiedWithBiasesAndOneKeyHead() {
  GptConfig config = kLlama;
  config.n_kv_head = 1;
  config.bias = config.tie_embeddings = true;
  config.rope = {.theta = 50,
                 .scaling = RotaryScaling::kLlama3,
                 .factor = 8,
                 .low = 1,
                 .high = 4,
                 .original_length = 20};
  return config;
}

constexpr GptConfig Qwen3() {
  GptConfig config = kLlama;
  config.head_dim = 6;  // more than n_embd / n_head
  config.qk_norm = nn::QkNorm::kHead;
  config.init_std = 0.3;  // a norm of small numbers is too far from linear for differences
  return config;
}

// The ingredients of modern recipes.
constexpr GptConfig Modern() {
  GptConfig config = kLlama;
  config.qk_norm = nn::QkNorm::kHead;
  config.norm_weight = false;
  config.activation = nn::MlpActivation::kRelu2;
  config.embed_norm = true;
  config.embed_mix = true;
  config.value_embed = true;
  config.init_std = 0.3;
  return config;
}

INSTANTIATE_TEST_SUITE_P(Llama, GptGradient,
                         testing::Values(kLlama, Qwen3(), Modern(), TiedWithBiasesAndOneKeyHead(),
                                         With(kLlama, nn::MlpActivation::kGeluExact),
                                         With(kLlama, nn::MlpActivation::kSilu)));

}  // namespace
}  // namespace lockstep::models
