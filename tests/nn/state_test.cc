// The state of modules in files.
#include "nn/state.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/fault.h"
#include "core/io/file.h"
#include "core/step_state.h"
#include "nn/sequential.h"
#include "nn/vision/batch_norm.h"
#include "nn/vision/conv2d.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::MessageOf;
using test::RandomTensor;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Sequential> Model(uint64_t seed) {
  auto model = std::make_unique<Sequential>();
  model->Add(std::make_shared<Conv2d>(1, 2, 3));
  model->Add(std::make_shared<BatchNorm2d>(2));
  model->Materialize(kCpu, seed);
  const StepState state(kCpu, 1);
  const TrainingScope training(state);
  (*model)(RandomTensor({2, 1, 4, 4}, static_cast<unsigned>(seed), DType::kF32));
  return model;
}

std::map<std::string, std::vector<double>> Values(const NamedTensors& state) {
  std::map<std::string, std::vector<double>> out;
  for (const auto& [name, t] : state) out[name] = t.To(DType::kF64).ToVector<double>();
  return out;
}

TEST(StateTest, AFileBringsBackParametersAndBuffers) {
  const std::string path = testing::TempDir() + "/state.safetensors";
  const auto a = Model(1), b = Model(2);
  EXPECT_EQ(StateOf(*a).size(), 7u);
  EXPECT_NE(Values(StateOf(*a)), Values(StateOf(*b)));
  SaveModule(*a, path);
  LoadModule(*b, path);
  EXPECT_EQ(Values(StateOf(*a)), Values(StateOf(*b)));
  EXPECT_TRUE(b->Parameters()[0]->value().requires_grad());
}

TEST(StateTest, WhatDoesNotFitIsRefusedAndNothingChanges) {
  const auto model = Model(1);
  const auto before = Values(StateOf(*model));
  const auto message = [&](const std::function<void(NamedTensors&)>& change) {
    NamedTensors state;
    for (const auto& [name, t] : StateOf(*model)) {
      state.emplace_back(name, Tensor::Full(t.shape(), 9, t.dtype()));
    }
    change(state);
    const std::string text = MessageOf<InputError>([&] { LoadState(*model, state); });
    EXPECT_EQ(Values(StateOf(*model)), before);
    return text;
  };
  EXPECT_THAT(message([](NamedTensors& s) { s.pop_back(); }),
              HasSubstr("the tensor '1.num_batches_tracked' is missing (6 of 7"));
  EXPECT_THAT(message([](NamedTensors& s) { s[0].first = "x"; }), HasSubstr("unknown tensor 'x'"));
  EXPECT_THAT(message([](NamedTensors& s) { s.push_back(s[0]); }),
              HasSubstr("'0.weight' is given twice"));
  EXPECT_THAT(message([](NamedTensors& s) { s[1].second = Tensor::Zeros({3}, DType::kF32); }),
              HasSubstr("'0.bias' must be f32[2], got f32[3]"));
  EXPECT_THAT(message([](NamedTensors& s) { s[4].second = s[4].second.To(DType::kF64); }),
              HasSubstr("'1.running_mean' must be f32[2], got f64[2]"));
  EXPECT_THAT(MessageOf<IoError>([&] { LoadModule(*model, "/nonexistent"); }),
              HasSubstr("/nonexistent"));
  Sequential bare({std::make_shared<Conv2d>(1, 2, 3)});
  EXPECT_THAT(MessageOf([&] { LoadState(bare, StateOf(*Model(1))); }),
              HasSubstr("call Materialize first"));
}

TEST(StateTest, ASaveThatFailsLeavesTheOldFileAndNothingElse) {
  const std::string folder = testing::TempDir() + "/state_test";
  RemoveTree(folder);
  MakeDirectories(folder);
  const std::string path = JoinPath(folder, "f");
  const Tensor x = Tensor::Full({1000}, 1, DType::kF32);
  SaveTensors(path, std::vector{SafetensorsItem::Of("x", x)});
  const std::string old = ReadFile(path);
  for (int at = 1; at <= 4; ++at) {  // create, write, sync, rename
    FaultInjector injector(FaultPlan::Parse(StrCat("enospc@", at, "+")));
    const ScopedFaultInjector scope(&injector);
    EXPECT_THROW(SaveTensors(path, std::vector{SafetensorsItem::Of("y", x)}), IoError) << at;
    EXPECT_THAT(ListDirectory(folder), ElementsAre("f")) << at;
  }
  const auto fail = []() -> Tensor { throw InputError("no such tensor"); };
  EXPECT_THROW(
      SaveTensors(path, std::vector{SafetensorsItem::Of("y", DType::kF32, x.shape(), fail)}),
      InputError);
  EXPECT_THAT(ListDirectory(folder), ElementsAre("f"));
  EXPECT_EQ(ReadFile(path), old);
}

}  // namespace
}  // namespace lockstep::nn
