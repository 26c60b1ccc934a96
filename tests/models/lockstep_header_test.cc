// lockstep.h: what a user's program needs, by one include.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/io/file.h"
#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

// Folders without functions for users: what tensors, optimizers and clipping call.
TEST(LockstepHeader, HasEveryOpThatUsersCall) {
  const std::string header = ReadFile("lockstep.h");
  std::ifstream names("kernels/op_names.txt");
  std::vector<std::string> missing;
  for (std::string name; names >> name;) {
    if (header.find(StrCat("\"kernels/", name, "/", name, ".h\"")) == std::string::npos) {
      missing.push_back(name);
    }
  }
  EXPECT_THAT(missing, testing::ElementsAre("accumulate", "adamw", "copy", "ema", "fill",
                                            "global_norm", "lion", "muon", "sgd", "views"))
      << "a new op's header belongs into lockstep.h";
}

// An operator and a name of each part: this compiles and links.
TEST(LockstepHeader, IsEnoughForAProgram) {
  nn::Sequential model;
  model.Add<nn::Linear>(4, 8);
  model.Add<nn::Relu>();
  model.Add<nn::Linear>(8, 1);
  model.Materialize(cuda::ParseDevice("cpu"), /*seed=*/1);
  optim::Sgd sgd(model.Parameters());
  StepState state(kCpu, /*seed=*/1);
  const Tensor x = ops::Randn({32, 4}, /*seed=*/1);
  const Tensor positive = (ops::Sum(x, {1}, true) > 0.0).To(DType::kF32);
  std::vector<double> losses;
  for (int64_t step = 0; step < 200; ++step) {
    const auto training = sgd.BeginStep(state, step, /*lr=*/0.5);
    const Tensor loss = ops::BceWithLogits(model(x), positive);
    Backward(loss);
    sgd.Step(state);
    sgd.ZeroGrad();
    losses.push_back(loss.Item());
  }
  EXPECT_LT(losses.back(), 0.1 * losses.front());
}

}  // namespace
}  // namespace lockstep
