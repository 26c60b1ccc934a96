// The loss of preference tuning, against TRL's formulas in PyTorch (tests/peers/make_dpo_golden.py)
// and against its laws; and the losses of rows that it is made of.
#include "models/preference/dpo.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_mode.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "kernels/binary/binary.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"
#include "nn/init.h"
#include "nn/lm_head.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using testing::Each;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using Doubles = std::vector<double>;

Doubles ToDoubles(const Tensor& x) {
  return x.Detach().To(kCpu).To(DType::kF64).ToVector<double>();
}

void ExpectNear(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  const Doubles a = ToDoubles(got), b = ToDoubles(want);
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << what << " " << i;
  }
}

DpoOptions OptionsOf(const Json& j) {
  return {.loss = j.at("loss") == "ipo" ? DpoLossKind::kIpo : DpoLossKind::kSigmoid,
          .beta = j.at("beta"),
          .label_smoothing = j.at("label_smoothing")};
}

class DpoGoldenTest : public test::DeviceTest {
 protected:
  Tensor Get(const std::string& name) const {
    const Tensor x = file_.Get(name).ToTensor();
    return (IsFloating(x.dtype()) ? x.To(dtype_) : x).To(GetParam());
  }
  // -100 is PyTorch's; and how many targets each row has.
  std::pair<Tensor, Tensor> TargetsAndLengths() const {
    const Tensor labels = file_.Get("labels").ToTensor();
    std::vector<int32_t> targets = labels.ToVector<int32_t>();
    Doubles lengths(labels.dim(0));
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] == -100) targets[i] = -1;
      lengths[i / labels.dim(1)] += targets[i] != -1;
    }
    return {Tensor::FromVector(targets, labels.shape(), GetParam()),
            Tensor::FromVector(lengths, {labels.dim(0)}).To(dtype_).To(GetParam())};
  }
  void CheckAll(DType dtype, int64_t loss_chunk, double tolerance);

  const SafetensorsFile file_ =
      SafetensorsFile::Open("tests/models/preference/testdata/dpo.safetensors");
  DType dtype_ = DType::kF32;
};

void DpoGoldenTest::CheckAll(DType dtype, int64_t loss_chunk, double tolerance) {
  dtype_ = dtype;
  const auto [targets, lengths] = TargetsAndLengths();
  const Tensor weight = Get("weight");
  nn::LmHead head(weight.dim(1), weight.dim(0), nn::Constant(0), loss_chunk);
  head.weight()->SetTrainable(false);
  head.Materialize(GetParam(), 1, dtype);
  head.weight()->value().CopyFrom(weight);
  const nn::RowLossScope rows;
  Tensor reference;
  {
    const NoGrad no_grad;
    reference = -head(Get("reference_x"), targets);
  }
  const Json variants = ParseJson(file_.metadata().at("variants"), "variants");
  ASSERT_EQ(variants.size(), 4u);
  for (const auto& [name, j] : variants.items()) {
    SCOPED_TRACE(StrCat(name, " in ", dtype, " with chunks of ", loss_chunk));
    const Tensor x = Get("x").SetRequiresGrad();
    const PreferenceLoss loss = DpoLoss(-head(x, targets), reference, OptionsOf(j), lengths);
    ExpectNear(loss.losses, Get(name + ".losses"), tolerance, "losses");
    ExpectNear(loss.chosen, Get(name + ".chosen"), tolerance, "chosen");
    ExpectNear(loss.rejected, Get(name + ".rejected"), tolerance, "rejected");
    EXPECT_FALSE(loss.chosen.requires_grad());
    Backward(ops::Mean(loss.losses));
    ExpectNear(x.grad(), Get(name + ".dx"), tolerance, "dx");
  }
}

TEST_P(DpoGoldenTest, LossesRewardsAndGradientsAreTrls) {
  for (const int64_t chunk : {0, 1, 4, 1000}) {
    CheckAll(DType::kF32, chunk, 5e-6);
    if (GetParam().is_cpu()) CheckAll(DType::kF64, chunk, 1e-13);
  }
}
INSTANTIATE_TEST_SUITE_P(Devices, DpoGoldenTest, test::Devices());

// A policy that is its reference loses log 2 on each pair, exactly.
TEST(Dpo, APolicyThatIsItsReferenceHasNoMargin) {
  const Tensor rows = Tensor::FromVector<float>({-312.25f, -7.5f, -1e4f, -0.125f}, {4});
  const PreferenceLoss loss = DpoLoss(rows, rows, {.beta = 0.1});
  EXPECT_THAT(loss.losses.ToVector<float>(), Each(std::numbers::ln2_v<float>));
  EXPECT_THAT(loss.chosen.ToVector<float>(), Each(0));
  const PreferenceLoss smooth = DpoLoss(rows, rows, {.beta = 0.1, .label_smoothing = 0.25});
  EXPECT_THAT(smooth.losses.ToVector<float>(), Each(FloatNear(std::numbers::ln2_v<float>, 1e-7f)));
}

// sigma(-margin) beta, towards the chosen answer and away from the rejected one.
TEST(Dpo, GradientsOfAPairAreOpposite) {
  const Tensor policy = Tensor::FromVector<double>({-3, -5, -8, -2}, {4}).SetRequiresGrad();
  const Tensor reference = Tensor::FromVector<double>({-4, -4, -4, -4}, {4}).SetRequiresGrad();
  Backward(ops::Sum(DpoLoss(policy, reference, {.beta = 0.5}).losses));
  EXPECT_FALSE(reference.grad().defined());
  const Doubles g = policy.grad().ToVector<double>();
  const double of_margins[] = {0.5 * 2, 0.5 * -6};
  for (int pair = 0; pair < 2; ++pair) {
    EXPECT_DOUBLE_EQ(g[2 * pair], -0.5 / (1 + std::exp(of_margins[pair])));
    EXPECT_EQ(g[2 * pair], -g[2 * pair + 1]);
  }
}

// With smoothing the best margin is finite: where sigmoid(margin) = 1 - e.
TEST(Dpo, SmoothingHasABestMargin) {
  const double margin = std::log(0.8 / 0.2);
  const Tensor policy = Tensor::FromVector<double>({margin, 0}, {2}).SetRequiresGrad();
  const DpoOptions options{.beta = 1, .label_smoothing = 0.2};
  Backward(ops::Sum(DpoLoss(policy, Tensor::Zeros({2}, DType::kF64), options).losses));
  EXPECT_THAT(policy.grad().ToVector<double>(), Each(testing::DoubleNear(0, 1e-16)));
}

TEST(Dpo, MarginsOfAnySizeAreFinite) {
  const Tensor zero = Tensor::Zeros({4}, DType::kF32);
  const Tensor policy =
      Tensor::FromVector<float>({1e4f, -1e4f, -1e4f, 1e4f}, {4}).SetRequiresGrad();
  const PreferenceLoss loss = DpoLoss(policy, zero, {.beta = 1});
  EXPECT_EQ(loss.losses.ToVector<float>(), (std::vector<float>{0, 2e4f}));
  Backward(ops::Sum(loss.losses));
  EXPECT_EQ(policy.grad().ToVector<float>(), (std::vector<float>{0, 0, -1, 1}));
}

TEST(Dpo, NoPairsHaveNoLosses) {
  const Tensor none = Tensor::Zeros({0}, DType::kF32);
  EXPECT_EQ(DpoLoss(none, none, {}).losses.shape(), Shape({0}));
}

TEST(Dpo, ErrorsSayWhatIsWrong) {
  const Tensor four = Tensor::Zeros({4}, DType::kF32), three = Tensor::Zeros({3}, DType::kF32);
  const auto message = [](const Tensor& policy, const Tensor& reference, const DpoOptions& options,
                          const Tensor& lengths = {}) {
    return MessageOf<ArgumentError>([&] { DpoLoss(policy, reference, options, lengths); });
  };
  EXPECT_THAT(message(three, three, {}), HasSubstr("come in pairs, [2 P], got f32[3]"));
  EXPECT_THAT(message(four, three, {}),
              HasSubstr("must be like the policy's, f32[4] on cpu, got f32[3] on cpu"));
  EXPECT_THAT(message(four, four, {.beta = 0}), HasSubstr("beta must be above 0, got 0"));
  EXPECT_THAT(message(four, four, {.label_smoothing = 0.5}),
              HasSubstr("label_smoothing must be in [0, 0.5), got 0.5"));
  EXPECT_THAT(message(four, four, {.loss = DpoLossKind::kIpo}),
              HasSubstr("needs the lengths of the answers, like f32[4]"));
  EXPECT_THAT(message(four, four, {.loss = DpoLossKind::kIpo, .label_smoothing = 0.1}, four),
              HasSubstr("the ipo loss has no label_smoothing, got 0.1"));
}

// ---- nn::RowLossScope. ----

constexpr int64_t kRows = 6, kTokens = 32, kWidth = 8, kVocabulary = 300;

class RowLossTest : public test::DeviceTest {
 protected:
  std::unique_ptr<nn::LmHead> MakeHead(int64_t loss_chunk) const {
    auto head = std::make_unique<nn::LmHead>(kWidth, kVocabulary, nn::Normal(0, 0.3), loss_chunk);
    head->Materialize(GetParam(), 7, DType::kF32);
    return head;
  }
  Tensor X() const {
    std::vector<float> x;
    for (int64_t i = 0; i < kRows * kTokens * kWidth; ++i) {
      x.push_back(static_cast<float>(i * 7919 % 1009) / 300.0f - 1.5f);
    }
    return Tensor::FromVector(x, {kRows, kTokens, kWidth}, GetParam());
  }
  Tensor Targets() const {
    std::vector<int32_t> targets;
    for (int32_t i = 0; i < kRows * kTokens; ++i) targets.push_back(i * 31 % 200 - 1);
    return Tensor::FromVector(targets, {kRows, kTokens}, GetParam());
  }
};

TEST_P(RowLossTest, RowsAddUpToTheLossWhateverTheChunks) {
  for (const int64_t chunk : {0, 1, 5, 32, 100, 1000}) {
    const auto head = MakeHead(chunk);
    const double whole = (*head)(X(), Targets()).Item();
    const nn::RowLossScope scope;
    const Tensor rows = (*head)(X(), Targets());
    EXPECT_EQ(rows.shape(), Shape({kRows}));
    EXPECT_NEAR(ops::Sum(rows).Item(), whole, 1e-6 * whole) << chunk;
  }
}

TEST_P(RowLossTest, ARowsBitsDoNotDependOnItsNeighbours) {
  const auto head = MakeHead(50);
  const nn::RowLossScope scope;
  const auto together = (*head)(X(), Targets()).ToVector<float>();
  for (int64_t row = 0; row < kRows; row += 2) {
    const auto pair =
        (*head)(X().Slice(0, row, row + 2), Targets().Slice(0, row, row + 2)).ToVector<float>();
    EXPECT_EQ(pair[0], together[row]);
    EXPECT_EQ(pair[1], together[row + 1]);
  }
}

// Weights that follow from all rows, as those of an objective do.
TEST_P(RowLossTest, GradientsOfWeightedRowsDoNotDependOnChunks) {
  std::vector<std::vector<float>> of_x, of_weight;
  for (const int64_t chunk : {0, 6}) {
    const auto head = MakeHead(chunk);
    const Tensor x = X().SetRequiresGrad();
    const nn::RowLossScope scope;
    const Tensor weights = Tensor::FromVector<float>({1, -1, 0.5f, 0, -2, 3}, {kRows}, GetParam());
    Backward(ops::Sum((*head)(x, Targets()) * weights));
    of_x.push_back(x.grad().ToVector<float>());
    of_weight.push_back(head->weight()->grad().ToVector<float>());
  }
  EXPECT_THAT(of_x[1], Pointwise(FloatNear(5e-6f), of_x[0]));
  EXPECT_THAT(of_weight[1], Pointwise(FloatNear(2e-5f), of_weight[0]));
}

// Nor does the graph keep them.
TEST_P(RowLossTest, TheLogitsOfAllRowsAreNeverInMemory) {
  constexpr int64_t kLogits = kRows * kTokens * kVocabulary * 4;
  Allocator& allocator = GetAllocator(GetParam());
  const auto peak = [&](int64_t chunk) {
    const auto head = MakeHead(chunk);
    head->weight()->SetTrainable(false);
    const Tensor x = X().SetRequiresGrad();
    const nn::RowLossScope scope;
    Backward(ops::Sum((*head)(x, Targets())));  // makes what is made once
    allocator.ResetPeak();
    const int64_t before = allocator.stats().live_bytes;
    Backward(ops::Sum((*head)(x, Targets())));
    return allocator.stats().peak_bytes - before;
  };
  EXPECT_GT(peak(0), kLogits);
  EXPECT_LT(peak(kTokens), kLogits / 6 + 4 * kRows * kTokens * kWidth * 4);
}

TEST_P(RowLossTest, TheScopeEnds) {
  const auto head = MakeHead(0);
  {
    const nn::RowLossScope outer;
    { const nn::RowLossScope inner; }
    EXPECT_EQ((*head)(X(), Targets()).ndim(), 1);
  }
  EXPECT_EQ((*head)(X(), Targets()).ndim(), 0);
  const nn::RowLossScope scope;
  const auto error = MessageOf<ArgumentError>([&] {
    (*head)(X().View({kRows * kTokens, kWidth}), Targets().View({kRows * kTokens}));
  });
  EXPECT_THAT(error, HasSubstr("the losses of rows need x [B, T, C] and targets [B, T]"));
}
INSTANTIATE_TEST_SUITE_P(Devices, RowLossTest, test::Devices());

}  // namespace
}  // namespace lockstep::models
