#include "dist/data_parallel/sync_batch_norm.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/step_state.h"
#include "dist/data_parallel/data_parallel.h"
#include "nn/activation.h"
#include "nn/sequential.h"
#include "nn/vision/batch_norm.h"
#include "nn/vision/conv2d.h"
#include "nn/vision/pooling.h"
#include "optim/sgd.h"
#include "tests/dist/in_process.h"
#include "tests/dist/toy_model.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kSamples = 16;

Tensor Noise(const Shape& shape, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 2 * ToUniform(Philox(5).At(stream, i)) - 0.7f;
  }
  return Tensor::FromVector(values, shape);
}

// Samples [begin, end) of the batch.
Tensor Part(const Tensor& whole, int rank, int ranks) {
  const int64_t n = whole.dim(0) / ranks;
  return whole.Slice(0, rank * n, (rank + 1) * n).Contiguous();
}

std::vector<float> RowsOf(const std::vector<float>& all, int rank, int ranks) {
  const auto n = static_cast<std::ptrdiff_t>(all.size()) / ranks;
  return {all.begin() + rank * n, all.begin() + (rank + 1) * n};
}

class Ranks : public testing::TestWithParam<int> {};

// One layer, to the bit: outputs, input gradients, running statistics.
TEST_P(Ranks, ALayerHasTheBitsOfTheWholeBatch) {
  const int ranks = GetParam();
  const Tensor x = Noise({kSamples, 3, 5, 4}, 1), dy = Noise({kSamples, 3, 5, 4}, 2);
  const auto run = [](nn::BatchNorm2d& norm, const Tensor& input, const Tensor& grad) {
    Tensor leaf = input.Clone().SetRequiresGrad();
    const StepState state(kCpu, 1);
    const TrainingScope training(state);
    const Tensor y = norm(leaf);
    Backward(y, grad);
    return std::pair(y.ToVector<float>(), leaf.grad().ToVector<float>());
  };
  nn::BatchNorm2d whole(3);
  whole.Materialize(kCpu, 1);
  const auto [y, dx] = run(whole, x, dy);
  RunInProcess(ranks, [&, &y = y, &dx = dx](ProcessGroup& group) {
    nn::BatchNorm2d norm(3);
    norm.Materialize(kCpu, 1);
    EXPECT_EQ(ConvertSyncBatchNorm(norm, group), 1);
    const auto [part, part_dx] =
        run(norm, Part(x, group.rank(), ranks), Part(dy, group.rank(), ranks));
    EXPECT_EQ(part, RowsOf(y, group.rank(), ranks));
    EXPECT_EQ(part_dx, RowsOf(dx, group.rank(), ranks));
    for (size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(norm.NamedBuffers()[b].second.ToVector<float>(),
                whole.NamedBuffers()[b].second.ToVector<float>())
          << norm.NamedBuffers()[b].first;
    }
  });
}

std::unique_ptr<nn::Sequential> Cnn() {
  auto model = std::make_unique<nn::Sequential>();
  for (const auto& [in, out] :
       {std::pair<int64_t, int64_t>(1, 4), std::pair<int64_t, int64_t>(4, 8)}) {
    model->Add(
        std::make_shared<nn::Conv2d>(in, out, 3, nn::Conv2dOptions{.padding = 1, .bias = false}));
    model->Add(std::make_shared<nn::BatchNorm2d>(out));
    model->Add(std::make_shared<nn::Relu>());
    model->Add(std::make_shared<nn::MaxPool2d>(2));
  }
  model->Add(std::make_shared<nn::Flatten>());
  model->Add(std::make_shared<nn::Linear>(8 * 2 * 2, 3));
  model->Materialize(kCpu, 3);
  return model;
}

// Trains for some steps; the state of the model afterwards, by name.
std::vector<std::pair<std::string, std::vector<float>>> Train(ProcessGroup* group) {
  const int ranks = group ? group->size() : 1, rank = group ? group->rank() : 0;
  const auto model = Cnn();
  if (group) {
    EXPECT_EQ(ConvertSyncBatchNorm(*model, *group), 2);
  }
  DataParallel parallel(group, *model);
  optim::Sgd sgd(model->Parameters(), {.momentum = 0.9});
  StepState state(kCpu, 1);
  for (int64_t step = 0; step < 5; ++step) {
    std::vector<int32_t> labels;
    for (int64_t i = 0; i < kSamples; ++i)
      labels.push_back(static_cast<int32_t>((i * i + step) % 3));
    const auto training = sgd.BeginStep(state, step, 0.05);
    const Tensor x = Part(Noise({kSamples, 1, 8, 8}, 10 + step), rank, ranks);
    const Tensor loss = ops::SoftmaxCrossEntropy(
        (*model)(x), Part(Tensor::FromVector(labels, {kSamples}), rank, ranks), Reduction::kSum);
    Backward(loss, Tensor::Full({}, 1.0 / kSamples, DType::kF32));
    sgd.Step(state);
    sgd.ZeroGrad();
  }
  parallel.CheckWeights("at the end");  // running statistics too
  std::vector<std::pair<std::string, std::vector<float>>> result;
  for (const auto& [name, p] : model->NamedParameters()) {
    result.emplace_back(name, p->value().ToVector<float>());
  }
  for (const auto& [name, b] : model->NamedBuffers()) {
    result.emplace_back(name, b.To(DType::kF32).ToVector<float>());
  }
  return result;
}

// Forward, backward and running statistics of a small CNN.
TEST_P(Ranks, ACnnTrainsAsOnTheWholeBatch) {
  const auto alone = Train(nullptr);
  RunInProcess(GetParam(), [&](ProcessGroup& group) {
    const auto together = Train(&group);
    ASSERT_EQ(together.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(together[i].first, alone[i].first) << "names are those of one process";
      for (size_t k = 0; k < alone[i].second.size(); ++k) {
        ASSERT_NEAR(together[i].second[k], alone[i].second[k],
                    2e-5 * std::max(1.0f, std::abs(alone[i].second[k])))
            << alone[i].first << "[" << k << "]";
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(SyncBatchNorm, Ranks, testing::Values(1, 2, 4));

// Without the conversion each rank has its own statistics, so the test above can fail.
TEST(SyncBatchNorm, ItIsTheConversionThatMakesThemEqual) {
  const Tensor x = Noise({kSamples, 3, 5, 4}, 1);
  RunInProcess(2, [&](ProcessGroup& group) {
    nn::BatchNorm2d norm(3);
    norm.Materialize(kCpu, 1);
    const StepState state(kCpu, 1);
    const TrainingScope training(state);
    norm(Part(x, group.rank(), 2));
    const std::vector<std::pair<std::string, Tensor>> buffers = {norm.NamedBuffers()[0]};
    EXPECT_THROW(CheckSameBits(group, "the running means", buffers), ReplicaError);
  });
}

}  // namespace
}  // namespace lockstep::dist
