#include "nn/attention/multihead_attention.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/step_state.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::CheckGradients;
using test::Describe;
using test::Difference;
using test::LinearReference;
using test::Matrix;
using test::MessageOf;
using test::ParameterOf;
using test::ParametersToCheck;
using test::Project;
using test::Randomize;
using test::RandomTensor;
using test::ToMatrix;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kBatch = 2, kQueries = 3, kKeys = 5;

// Of one batch's rows; seen(i, j): whether query i sees key j.
template <class Seen>
Matrix Reference(const Module& m, const Matrix& query, const Matrix& memory, int64_t heads,
                 int64_t kv_heads, const Seen& seen) {
  const auto project = [&](const std::string& name, const Matrix& x) {
    return LinearReference(x, ParameterOf(m, name + ".weight"), ParameterOf(m, name + ".bias"));
  };
  const Matrix q = project("q_proj", query), k = project("k_proj", memory),
               v = project("v_proj", memory);
  const int64_t d = q.cols / heads;
  Matrix y{q.rows, q.cols, std::vector<double>(static_cast<size_t>(q.rows * q.cols))};
  for (int64_t i = 0; i < q.rows; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / (heads / kv_heads);
      std::vector<double> weight(static_cast<size_t>(k.rows));
      double sum = 0;
      for (int64_t j = 0; j < k.rows; ++j) {
        double score = 0;
        for (int64_t c = 0; c < d; ++c) score += q(i, h * d + c) * k(j, g * d + c);
        weight[j] = seen(i, j) ? std::exp(score / std::sqrt(static_cast<double>(d))) : 0;
        sum += weight[j];
      }
      for (int64_t j = 0; j < k.rows; ++j) {
        for (int64_t c = 0; c < d; ++c) y(i, h * d + c) += weight[j] / sum * v(j, g * d + c);
      }
    }
  }
  return project("out_proj", y);
}

Matrix Rows(const Tensor& x, int64_t batch) { return ToMatrix(x.Slice(0, batch, batch + 1)); }

TEST(MultiheadAttentionTest, NamesAreThoseOfItsProjections) {
  MultiheadAttention attention(8, 4, {.n_kv_head = 2, .key_dim = 6});
  EXPECT_THAT(
      Describe(attention),
      ElementsAre("q_proj.weight [8, 8] decays", "q_proj.bias [8]", "k_proj.weight [4, 6] decays",
                  "k_proj.bias [4]", "v_proj.weight [4, 6] decays", "v_proj.bias [4]",
                  "out_proj.weight [8, 8] decays", "out_proj.bias [8]"));
}

TEST(MultiheadAttentionTest, CrossAttentionIsAsDefined) {
  MultiheadAttention attention(8, 4, {.n_kv_head = 2, .key_dim = 6});
  attention.Materialize(kCpu, 1, DType::kF64);
  Randomize(attention, 2);
  const Tensor query = RandomTensor({kBatch, kQueries, 8}, 3);
  const Tensor memory = RandomTensor({kBatch, kKeys, 6}, 4);
  // Keys 3 and 4 of the second sample are padding.
  const std::vector<uint8_t> real = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0};
  const Tensor mask = Tensor::FromVector(real, {kBatch, 1, 1, kKeys}).To(DType::kBool);
  const Tensor y = attention(query, memory, memory, {.mask = mask});
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto seen = [&](int64_t, int64_t j) { return real[b * kKeys + j] != 0; };
    EXPECT_LT(
        Difference(Rows(y, b), Reference(attention, Rows(query, b), Rows(memory, b), 4, 2, seen)),
        1e-12);
  }
}

TEST(MultiheadAttentionTest, CausalSelfAttentionIsAsDefinedAndHasItsGradients) {
  MultiheadAttention attention(6, 2);
  attention.Materialize(kCpu, 1, DType::kF64);
  Randomize(attention, 2);
  Tensor x = RandomTensor({kBatch, kKeys, 6}, 3);
  x.SetRequiresGrad();
  const auto run = [&] { return attention(x, x, x, {.causal = true}); };
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto seen = [](int64_t i, int64_t j) { return j <= i; };
    EXPECT_LT(Difference(Rows(run(), b), Reference(attention, Rows(x, b), Rows(x, b), 2, 2, seen)),
              1e-12);
  }
  auto tensors = ParametersToCheck(attention);
  tensors.emplace_back("x", x);
  CheckGradients(tensors, [&] { return Project(run()); });
}

TEST(MultiheadAttentionTest, WeightsAreDroppedInTrainingOnly) {
  MultiheadAttention attention(6, 2, {.dropout = 0.5}), plain(6, 2);
  attention.Materialize(kCpu, 1);
  plain.Materialize(kCpu, 1);
  const Tensor x = RandomTensor({kBatch, kKeys, 6}, 3, DType::kF32);
  const auto values = [&](MultiheadAttention& m) { return m(x, x, x).ToVector<float>(); };
  EXPECT_EQ(values(attention), values(plain));
  StepState state(kCpu, 1);
  state.Begin(0, 0);
  state.SetFirstSample(0);
  const TrainingScope scope(state);
  EXPECT_EQ(values(plain), values(plain));
  EXPECT_NE(values(attention), values(plain));
  EXPECT_THAT(MessageOf([&] { plain(x, x, x, {.dropout = 0.5}); }),
              HasSubstr("a call has no dropout of its own; give it to the constructor"));
}

TEST(MultiheadAttentionTest, SizesMustFit) {
  EXPECT_THAT(MessageOf([] { MultiheadAttention(6, 4); }),
              HasSubstr("the width (dim = 6) must be a positive multiple of the number of heads "
                        "(n_head = 4)"));
  EXPECT_THAT(MessageOf([] { MultiheadAttention(6, 3, {.n_kv_head = 2}); }),
              HasSubstr("n_head = 3 must be a multiple of the number of key and value heads"));
  MultiheadAttention attention(6, 2);
  attention.Materialize(kCpu, 1);
  const Tensor flat = RandomTensor({4, 6}, 1, DType::kF32);
  EXPECT_THAT(MessageOf([&] { attention(flat, flat, flat); }),
              HasSubstr("MultiheadAttention takes query, key and value of shape [B, T, C], got "
                        "f32[4, 6]"));
}

}  // namespace
}  // namespace lockstep::nn
