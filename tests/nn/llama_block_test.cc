// The block of Llama: RMS norms, rotary positions, grouped-query attention, SwiGLU; that of Qwen3,
// which has norms of queries and keys and heads of any width; and the norms as modules.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/engine.h"
#include "kernels/binary/binary.h"
#include "nn/attention/causal_self_attention.h"
#include "nn/layer_norm.h"
#include "nn/recompute.h"
#include "nn/rms_norm.h"
#include "nn/rotary.h"
#include "nn/stream/residual_norm.h"
#include "nn/transformer_block.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::Describe;
using test::Difference;
using test::Matrix;
using test::MessageOf;
using test::ParameterOf;
using test::RandomTensor;
using test::ToMatrix;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kBatch = 2, kLength = 7, kWidth = 24, kHeads = 4, kKeyHeads = 2, kHead = 6;
constexpr double kTheta = 100, kEps = 1e-3;

TransformerOptions Llama() {
  return {.n_embd = kWidth,
          .n_head = kHeads,
          .bias = false,
          .n_kv_head = kKeyHeads,
          .n_inner = 10,
          .norm = NormKind::kRmsNorm,
          .norm_eps = kEps,
          .activation = MlpActivation::kSwiGlu,
          .rotary = std::make_shared<Rotary>(kHead, RotaryOptions{.theta = kTheta})};
}

constexpr int64_t kWideHead = 10;

TransformerOptions Qwen3() {
  TransformerOptions options = Llama();
  options.head_dim = kWideHead;
  options.qk_norm = nn::QkNorm::kHead;
  options.rotary = std::make_shared<Rotary>(kWideHead, RotaryOptions{.theta = kTheta});
  return options;
}

// ---- The same in plain loops. ----

Matrix RmsNormReference(const Matrix& x, const Matrix& w, double eps) {
  Matrix y = x;
  for (int64_t r = 0; r < x.rows; ++r) {
    double square = 0;
    for (int64_t c = 0; c < x.cols; ++c) square += x(r, c) * x(r, c);
    const double scale = 1 / std::sqrt(square / static_cast<double>(x.cols) + eps);
    for (int64_t c = 0; c < x.cols; ++c) y(r, c) *= scale * w.data[static_cast<size_t>(c)];
  }
  return y;
}

// Element c of row t of a head of this width that starts at column `at`, turned by its position.
double Turned(const Matrix& m, int64_t row, int64_t at, int64_t c, int64_t head) {
  const int64_t half = head / 2, pair = c % half;
  const double angle =
      static_cast<double>(row % kLength) *
      std::pow(kTheta, -2.0 * static_cast<double>(pair) / static_cast<double>(head));
  const double a = m(row, at + pair), b = m(row, at + pair + half);
  return c < half ? a * std::cos(angle) - b * std::sin(angle)
                  : b * std::cos(angle) + a * std::sin(angle);
}

Matrix AttentionReference(const Matrix& qkv) {
  const int64_t head = qkv.cols / (kHeads + 2 * kKeyHeads), width = kHeads * head;
  Matrix y{qkv.rows, width, std::vector<double>(static_cast<size_t>(qkv.rows * width))};
  for (int64_t row = 0; row < qkv.rows; ++row) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t group = h / (kHeads / kKeyHeads), q = h * head;
      const int64_t k = width + group * head, v = width + (kKeyHeads + group) * head;
      std::vector<double> weights;
      double total = 0;
      for (int64_t j = row / kLength * kLength; j <= row; ++j) {
        double score = 0;
        for (int64_t c = 0; c < head; ++c) {
          score += Turned(qkv, row, q, c, head) * Turned(qkv, j, k, c, head);
        }
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(head))));
        total += weights.back();
      }
      for (size_t i = 0; i < weights.size(); ++i) {
        const int64_t j = row / kLength * kLength + static_cast<int64_t>(i);
        for (int64_t c = 0; c < head; ++c) y(row, q + c) += weights[i] / total * qkv(j, v + c);
      }
    }
  }
  return y;
}

// qkv with each head of q and k normed by itself.
Matrix NormedHeads(const Module& m, Matrix qkv) {
  const int64_t head = qkv.cols / (kHeads + 2 * kKeyHeads);
  for (int64_t h = 0; h < kHeads + kKeyHeads; ++h) {
    const Matrix weight = ParameterOf(m, h < kHeads ? "attn.q_norm.weight" : "attn.k_norm.weight");
    Matrix one{qkv.rows, head, {}};
    for (int64_t r = 0; r < qkv.rows; ++r) {
      for (int64_t c = 0; c < head; ++c) one.data.push_back(qkv(r, h * head + c));
    }
    one = RmsNormReference(one, weight, kEps);
    for (int64_t r = 0; r < qkv.rows; ++r) {
      for (int64_t c = 0; c < head; ++c) qkv(r, h * head + c) = one(r, c);
    }
  }
  return qkv;
}

Matrix BlockReference(const Module& m, const Matrix& x, bool qk_norm = false) {
  const auto linear = [&](const std::string& name, const Matrix& in) {
    return test::LinearReference(in, ParameterOf(m, name + ".weight"), {});
  };
  const auto norm = [&](const std::string& name, const Matrix& in) {
    return RmsNormReference(in, ParameterOf(m, name + ".weight"), kEps);
  };
  Matrix qkv = linear("attn.c_attn", norm("ln_1", x));
  if (qk_norm) qkv = NormedHeads(m, std::move(qkv));
  const Matrix attended = AttentionReference(qkv);
  const Matrix middle = test::AddReference(x, linear("attn.c_proj", attended));
  const Matrix gate_up = linear("mlp.c_fc", norm("ln_2", middle));
  Matrix hidden{x.rows, 10, std::vector<double>(static_cast<size_t>(x.rows * 10))};
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < 10; ++c) {
      const double gate = gate_up(r, c);
      hidden(r, c) = gate / (1 + std::exp(-gate)) * gate_up(r, 10 + c);
    }
  }
  return test::AddReference(middle, linear("mlp.c_proj", hidden));
}

// ---- The block. ----

TEST(LlamaBlockTest, NamesAndShapes) {
  EXPECT_THAT(Describe(TransformerBlock(Llama())),
              ElementsAre("ln_1.weight [24]", "attn.c_attn.weight [48, 24] decays",
                          "attn.c_proj.weight [24, 24] decays", "ln_2.weight [24]",
                          "mlp.c_fc.weight [20, 24] decays", "mlp.c_proj.weight [24, 10] decays"));
  TransformerOptions biased = Llama();
  biased.bias = true;  // RMS norms have none anyway
  EXPECT_THAT(
      Describe(TransformerBlock(biased)),
      ElementsAre("ln_1.weight [24]", "attn.c_attn.weight [48, 24] decays", "attn.c_attn.bias [48]",
                  "attn.c_proj.weight [24, 24] decays", "attn.c_proj.bias [24]", "ln_2.weight [24]",
                  "mlp.c_fc.weight [20, 24] decays", "mlp.c_fc.bias [20]",
                  "mlp.c_proj.weight [24, 10] decays", "mlp.c_proj.bias [24]"));
}

TEST(LlamaBlockTest, Qwen3sHaveNormsOfQueriesAndKeys) {
  EXPECT_THAT(Describe(TransformerBlock(Qwen3())),
              ElementsAre("ln_1.weight [24]", "attn.c_attn.weight [80, 24] decays",
                          "attn.q_norm.weight [10]", "attn.k_norm.weight [10]",
                          "attn.c_proj.weight [24, 40] decays", "ln_2.weight [24]",
                          "mlp.c_fc.weight [20, 24] decays", "mlp.c_proj.weight [24, 10] decays"));
  TransformerBlock block(Qwen3());
  block.Materialize(kCpu, 1, DType::kF64);
  EXPECT_THAT(ParameterOf(block, "attn.q_norm.weight").data, testing::Each(1));
  test::Randomize(block, 3, -0.5, 0.5);
  const Tensor x = RandomTensor({kBatch, kLength, kWidth}, 8);
  EXPECT_LT(Difference(ToMatrix(Complete(block(x))),
                       BlockReference(block, ToMatrix(x), /*qk_norm=*/true)),
            1e-12);
}

TEST(LlamaBlockTest, ForwardIsTheFormula) {
  TransformerBlock block(Llama());
  block.Materialize(kCpu, 1, DType::kF64);
  test::Randomize(block, 3, -0.5, 0.5);
  const Tensor x = RandomTensor({kBatch, kLength, kWidth}, 8);
  EXPECT_LT(Difference(ToMatrix(Complete(block(x))), BlockReference(block, ToMatrix(x))), 1e-12);
}

TEST(LlamaBlockTest, ForwardInF32IsNearTheFormula) {
  TransformerBlock block(Llama());
  block.Materialize(kCpu, 1);
  test::Randomize(block, 3, -0.5, 0.5);
  const Tensor x = RandomTensor({kBatch, kLength, kWidth}, 8, DType::kF32);
  EXPECT_LT(Difference(ToMatrix(Complete(block(x))), BlockReference(block, ToMatrix(x))), 1e-5);
}

TEST(LlamaBlockTest, GradientsOfQwen3AgainstDifferences) {
  TransformerBlock block(Qwen3());
  block.Materialize(kCpu, 1, DType::kF64);
  test::Randomize(block, 3, -0.7, 0.7);
  Tensor x = RandomTensor({kBatch, 5, kWidth}, 8);
  x.SetRequiresGrad();
  auto tensors = test::ParametersToCheck(block);
  tensors.emplace_back("x", x);
  test::CheckGradients(tensors, [&] { return test::Project(Complete(block(x))); });
}

TEST(LlamaBlockTest, GradientsAgainstDifferences) {
  for (const MlpActivation activation :
       {MlpActivation::kSwiGlu, MlpActivation::kGelu, MlpActivation::kGeluExact,
        MlpActivation::kRelu2, MlpActivation::kSilu}) {
    TransformerOptions options = Llama();
    options.activation = activation;
    options.bias = activation != MlpActivation::kSwiGlu;
    TransformerBlock block(options);
    block.Materialize(kCpu, 1, DType::kF64);
    test::Randomize(block, 3, -0.7, 0.7);
    Tensor x = RandomTensor({kBatch, 5, kWidth}, 8);
    x.SetRequiresGrad();
    auto tensors = test::ParametersToCheck(block);
    tensors.emplace_back("x", x);
    test::CheckGradients(tensors, [&] { return test::Project(Complete(block(x))); });
  }
}

// What rotary embedding is for: scores depend only on distances, so that a shifted sequence has the
// same outputs.
TEST(LlamaBlockTest, AttentionDoesNotDependOnWhereTheSequenceStarts) {
  const auto rotary = std::make_shared<Rotary>(kHead, RotaryOptions{.theta = kTheta});
  const Tensor qk = RandomTensor({1, 6, 2 * kHead}, 4);
  const auto scores = [&](int64_t first) {
    const Matrix m = ToMatrix((*rotary)(qk, 2, first));
    std::vector<double> out;
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < 6; ++j) {
        double sum = 0;
        for (int64_t c = 0; c < kHead; ++c) sum += m(i, c) * m(j, kHead + c);
        out.push_back(sum);
      }
    }
    return out;
  };
  const std::vector<double> at_0 = scores(0), at_1000 = scores(1000);
  EXPECT_NE(ToMatrix((*rotary)(qk, 2, 0)).data, ToMatrix((*rotary)(qk, 2, 1000)).data);
  for (size_t i = 0; i < at_0.size(); ++i) EXPECT_NEAR(at_0[i], at_1000[i], 1e-11);
}

TEST(LlamaBlockTest, SizesAreChecked) {
  TransformerOptions options = Llama();
  options.n_kv_head = 3;
  EXPECT_THAT(MessageOf([&] { TransformerBlock block(options); }),
              HasSubstr("n_head = 4 must be a multiple of the number of key and value heads "
                        "(n_kv_head = 3)"));
  options = Qwen3();
  options.head_dim = -2;
  EXPECT_THAT(MessageOf([&] { TransformerBlock block(options); }),
              HasSubstr("the width of a head (head_dim) must not be negative, got -2"));
  options.head_dim = 0;
  options.n_head = 5;
  options.n_kv_head = 0;
  EXPECT_THAT(
      MessageOf([&] { TransformerBlock block(options); }),
      HasSubstr("the width (n_embd = 24) must be a positive multiple of the number of heads "
                "(n_head = 5), unless these have a width of their own (head_dim)"));
  EXPECT_THAT(MessageOf([] { Rotary(5, {}); }),
              HasSubstr("the size of a head must be even, got 5"));
  EXPECT_THAT(MessageOf([] { Rotary(4, {.theta = -1}); }), HasSubstr("theta must be positive"));
  EXPECT_THAT(MessageOf([] { RmsNorm norm(0); }), HasSubstr("positive size, got 0"));
  EXPECT_THAT(MessageOf([] { RmsNorm(4, 0); }), HasSubstr("eps > 0, got 0"));
  EXPECT_THAT(MessageOf([] { ResidualNorm(0, {}); }), HasSubstr("positive size, got 0"));
  EXPECT_THAT(MessageOf([] { ResidualNorm(4, {.eps = 0}); }), HasSubstr("eps > 0, got 0"));
}

// ---- Rotary's table. ----

TEST(RotaryTest, GrowsWithoutChangingItsRowsAndFollowsTheDType) {
  Rotary fresh(kHead, {.theta = kTheta}), used(kHead, {.theta = kTheta});
  const Tensor x = RandomTensor({1, 300, kHead}, 5), start = RandomTensor({1, 3, kHead}, 6);
  const std::vector<double> before = used(start, 1).ToVector<double>();
  const std::vector<double> whole = used(x, 1).ToVector<double>();
  EXPECT_EQ(whole, fresh(x, 1).ToVector<double>());
  EXPECT_EQ(used(start, 1).ToVector<double>(), before);
  // Piece by piece, as text is generated.
  for (int64_t t : {0, 1, 17, 299}) {
    const std::vector<double> piece = used(x.Slice(1, t, t + 1), 1, t).ToVector<double>();
    for (int64_t c = 0; c < kHead; ++c) {
      EXPECT_EQ(piece[static_cast<size_t>(c)], whole[static_cast<size_t>(t * kHead + c)]);
    }
  }
  const std::vector<float> narrow = used(x.To(DType::kF32), 1).ToVector<float>();
  for (size_t i = 0; i < narrow.size(); ++i) EXPECT_NEAR(narrow[i], whole[i], 1e-6);
}

// As the chunks of a sequence do that context-parallel ranks share.
TEST(RotaryTest, GrowsWithinAModuleThatIsRecomputed) {
  class TwoPlaces : public Layer {
    Tensor Forward(const Tensor& x) override {
      return ops::Add(rotary_(x, 1), rotary_(x, 1, /*first_position=*/100));
    }
    Rotary rotary_{kHead, {.theta = kTheta}};
  };
  const auto gradient = [](bool recompute) {
    std::shared_ptr<Layer> layer = std::make_shared<TwoPlaces>();
    if (recompute) layer = Recompute(layer);
    Tensor x = RandomTensor({1, 3, kHead}, 5);
    x.SetRequiresGrad();
    Backward((*layer)(x), RandomTensor({1, 3, kHead}, 6));
    return x.grad().ToVector<double>();
  };
  EXPECT_EQ(gradient(true), gradient(false));
}

// ---- Norms as modules. ----

TEST(NormTest, RmsNormIsTheFormula) {
  RmsNorm norm(5, kEps);
  EXPECT_THAT(Describe(norm), ElementsAre("weight [5]"));
  norm.Materialize(kCpu, 1, DType::kF64);
  EXPECT_THAT(norm.weight()->value().ToVector<double>(), testing::Each(1));
  test::Randomize(norm, 3, 0.5, 1.5);
  const Tensor x = RandomTensor({3, 4, 5}, 8);
  EXPECT_LT(Difference(ToMatrix(norm(x)),
                       RmsNormReference(ToMatrix(x), ParameterOf(norm, "weight"), kEps)),
            1e-13);
}

TEST(NormTest, ResidualNormIsTheSumAndItsNormBitByBit) {
  for (const NormOptions options : {NormOptions{.kind = NormKind::kLayerNorm},
                                    NormOptions{.kind = NormKind::kLayerNorm, .bias = false},
                                    NormOptions{.kind = NormKind::kRmsNorm, .eps = kEps}}) {
    ResidualNorm fused(37, options);
    std::shared_ptr<Layer> plain = std::make_shared<LayerNorm>(37, options.bias, options.eps);
    if (options.kind == NormKind::kRmsNorm) plain = std::make_shared<RmsNorm>(37, options.eps);
    EXPECT_EQ(Describe(fused), Describe(*plain));
    fused.Materialize(kCpu, 1);
    plain->Materialize(kCpu, 1);
    test::Randomize(fused, 3, -0.5, 1.5);
    test::Randomize(*plain, 3, -0.5, 1.5);
    const Tensor x = RandomTensor({5, 37}, 8, DType::kF32);
    const Tensor branch = RandomTensor({5, 37}, 9, DType::kF32);
    const auto [sum, y] = fused({x, branch});
    std::vector<float> want = x.ToVector<float>();
    const std::vector<float> added = branch.ToVector<float>();
    for (size_t i = 0; i < want.size(); ++i) want[i] += added[i];
    EXPECT_EQ(sum.ToVector<float>(), want);
    EXPECT_EQ(y.ToVector<float>(), (*plain)(sum.Detach()).ToVector<float>());
    // Without a branch.
    const auto [same, normed] = fused(x);
    EXPECT_EQ(same.raw_data(), x.raw_data());
    EXPECT_EQ(normed.ToVector<float>(), (*plain)(x).ToVector<float>());
  }
}

// Sync batch norm and the like: a slot takes any module of its interface, and nothing else.
TEST(NormTest, TheSecondNormOfABlockCanBeReplaced) {
  class SumTwice : public ResidualNormLayer {
   protected:
    std::pair<Tensor, Tensor> Forward(const ResidualStream& stream) override {
      return {stream.x, stream.x};
    }
  };
  TransformerBlock block(Llama());
  block.Materialize(kCpu, 1);
  block.ReplaceChild("ln_2", std::make_shared<SumTwice>());
  const Tensor x = RandomTensor({1, 3, kWidth}, 8, DType::kF32);
  EXPECT_EQ(Complete(block(x)).shape(), x.shape());
  EXPECT_THAT(MessageOf([&] { block.ReplaceChild("ln_2", std::make_shared<RmsNorm>(kWidth)); }),
              HasSubstr("the child 'ln_2' cannot be replaced by a module of another interface"));
}

}  // namespace
}  // namespace lockstep::nn
