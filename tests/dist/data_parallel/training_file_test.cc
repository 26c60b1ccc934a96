// A loop's state in a file: what continues from it ends with the bits of what never stopped.
#include "dist/data_parallel/training_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/shard/fully_shard.h"
#include "kernels/cast/cast.h"
#include "nn/activation.h"
#include "nn/precision.h"
#include "nn/sequential.h"
#include "nn/state.h"
#include "nn/vision/batch_norm.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "tests/dist/ranks.h"
#include "tests/dist/toy_model.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kRows = 4, kMicroBatches = 4;

struct Task {
  DType dtype = DType::kF32;  // f16 with a loss scale
  bool norm = false;          // a batch norm, which has buffers
  int64_t hidden = 4096;      // as many weights as ranks need to shard them
};

void Build(nn::Sequential& model, const Task& task) {
  model.Add(std::make_shared<nn::Linear>(6, task.hidden));
  if (task.norm) model.Add(std::make_shared<nn::BatchNorm1d>(task.hidden));
  model.Add(std::make_shared<nn::Relu>());
  model.Add(std::make_shared<nn::Linear>(task.hidden, 3));
}

// A loop, from the file's step on if there is one, which saves at its end.
template <class Parallel>
void TrainTo(int64_t steps, const std::string& path, ProcessGroup* group, const Task& task = {}) {
  nn::Sequential model;
  Build(model, task);
  nn::Materialize(model, kCpu, /*seed=*/1, {.compute = task.dtype});
  Parallel parallel(group, model, {.sum = GradientSum::kOrdered, .micro_batches = kMicroBatches});
  optim::AdamW adamw(model.Parameters());
  StepState state(kCpu, /*seed=*/1);
  // The scale grows at steps that do not begin with the file's.
  if (task.dtype == DType::kF16) state.EnableLossScaling({.growth_interval = 3});
  int64_t step = PathExists(path) ? LoadTraining(path, model, adamw, state) : 0;
  for (; step < steps; ++step) {
    const auto training = adamw.BeginStep(state, step, 1e-2);
    for (const int64_t m : parallel.micro_order()) {
      training.SetFirstSample(m * kRows);
      parallel.BeginMicroBatch(m == parallel.micro_order().back());
      const ToyBatch batch = MakeToyBatch(step * kMicroBatches + m, kRows);
      const Tensor logits = model(ops::Cast(batch.x, task.dtype));
      Backward(ops::SoftmaxCrossEntropy(logits, batch.labels, Reduction::kSum),
               training.Root(1.0 / (kRows * kMicroBatches)));
    }
    optim::ClipGradNorm(adamw.parameters(), 0.5, state);
    adamw.Step(state);
    adamw.ZeroGrad();
  }
  SaveTraining(path, parallel, model, adamw, state);
}

std::string Path(const std::string& name) {
  const std::string path =
      JoinPath(testing::TempDir(),
               StrCat(testing::UnitTest::GetInstance()->current_test_info()->name(), "-", name));
  RemoveTree(path);
  return path;
}

TEST(TrainingFile, ContinuesAsIfTheLoopHadNeverStopped) {
  for (const Task& task : {Task{}, Task{.norm = true}, Task{DType::kBF16}, Task{DType::kF16}}) {
    const std::string whole = Path("whole"), parts = Path("parts");
    TrainTo<DataParallel>(7, whole, nullptr, task);
    TrainTo<DataParallel>(4, parts, nullptr, task);
    EXPECT_NE(ReadFile(parts), ReadFile(whole)) << task.dtype;
    TrainTo<DataParallel>(7, parts, nullptr, task);
    EXPECT_EQ(ReadFile(parts), ReadFile(whole)) << task.dtype;
    const auto metadata = SafetensorsFile::Open(whole).metadata();
    EXPECT_EQ(metadata.at("steps"), "7");
    if (task.dtype == DType::kF16) {
      EXPECT_EQ(metadata.at("loss_scale"), "262144");
      EXPECT_EQ(metadata.at("good_steps"), "1");
    }
  }
}

TEST(TrainingFile, IsTheSameWhateverRanksShareOutAndWhoeverContinues) {
  const std::string alone = Path("alone");
  TrainTo<DataParallel>(7, alone, nullptr);
  using Train = void (*)(int64_t, const std::string&, ProcessGroup*, const Task&);
  const Train whole = TrainTo<DataParallel>, sharded = TrainTo<FullyShard>;
  const auto on = [](int ranks, Train train, int64_t steps, const std::string& path) {
    test::RunRanks(ranks, [&](ProcessGroup& group) { train(steps, path, &group, {}); });
  };
  for (const auto& [first_ranks, first, ranks, last] : {std::tuple(2, whole, 2, sharded),
                                                        {2, sharded, 4, sharded},
                                                        {4, sharded, 2, whole},
                                                        {1, sharded, 2, sharded}}) {
    const std::string path = Path("ranks");
    on(first_ranks, first, 4, path);
    on(ranks, last, 7, path);
    EXPECT_EQ(ReadFile(path), ReadFile(alone)) << first_ranks << " ranks, then " << ranks;
  }
}

TEST(TrainingFile, WhatDoesNotFitIsRefused) {
  const Task small{.hidden = 8};
  const std::string path = Path("file"), other = Path("other");
  TrainTo<DataParallel>(2, path, nullptr, small);

  nn::Sequential model;
  Build(model, small);
  model.Materialize(kCpu, /*seed=*/1);
  nn::SaveModule(model, other);
  DataParallel parallel(nullptr, model);
  optim::AdamW adamw(model.Parameters());
  optim::Sgd sgd(model.Parameters());
  StepState state(kCpu, /*seed=*/1);
  {
    const auto training = adamw.BeginStep(state, 0, 1e-2);
    EXPECT_THAT(MessageOf([&] { SaveTraining(other, parallel, model, adamw, state); }),
                HasSubstr("save after optimizer.Step(state)"));
  }
  const auto values = [&] {
    std::vector<std::vector<float>> all;
    for (const auto& [name, tensor] : nn::StateOf(model)) all.push_back(tensor.ToVector<float>());
    for (const auto& [name, tensor] : adamw.NamedState()) all.push_back(tensor.ToVector<float>());
    return all;
  };
  const auto before = values();
  const auto load = [&](const std::string& from, optim::Optimizer& optimizer) {
    const std::string error =
        MessageOf<Error>([&] { LoadTraining(from, model, optimizer, state); });
    EXPECT_EQ(values(), before) << "something was loaded before: " << error;
    return error;
  };
  EXPECT_THAT(load(Path("none"), adamw), HasSubstr("none"));
  EXPECT_THAT(load(other, adamw), AllOf(HasSubstr(other), HasSubstr("\"steps\"")));
  EXPECT_THAT(load(path, sgd), AllOf(HasSubstr(path), HasSubstr(".exp_avg")));
  EXPECT_THAT(
      MessageOf<InputError>([&] { TrainTo<DataParallel>(3, path, nullptr, Task{.hidden = 9}); }),
      AllOf(HasSubstr(path), HasSubstr("'0."), HasSubstr("f32[9")));
  state.EnableLossScaling();
  EXPECT_THAT(load(path, adamw), HasSubstr("\"loss_scale\""));
}

// Of a sharded model, where the others wait in the middle of the file.
TEST(TrainingFile, AllRanksLearnThatItCannotBeWritten) {
  const std::string folder = Path("no-folder"), path = JoinPath(folder, "file");
  for (const bool sharded : {false, true}) {
    const auto errors = test::ErrorsOf(2, [&](ProcessGroup& group) {
      sharded ? TrainTo<FullyShard>(1, path, &group) : TrainTo<DataParallel>(1, path, &group);
    });
    EXPECT_THAT(errors[0], HasSubstr(folder)) << sharded;
    EXPECT_THAT(errors[1], HasSubstr("rank 0")) << sharded;
  }
}

}  // namespace
}  // namespace lockstep::dist
