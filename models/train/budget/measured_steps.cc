#include "models/train/budget/measured_steps.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/autograd/engine.h"
#include "core/stream.h"
#include "kernels/creation/creation.h"
#include "models/gpt/gpt.h"
#include "models/train/run_model.h"
#include "models/train/step/kernel_times.h"

namespace lockstep::models {
namespace {

// Tokens of a step; with these depths some seconds on two cores, or on a GPU.
constexpr int64_t kCpuTokens = 4096, kGpuTokens = 16384;
constexpr int64_t kSteps = 4;  // at most
constexpr std::chrono::seconds kEnough(3);

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

RunSetup SetupOf(std::vector<std::string> arguments, Device device) {
  const auto prepare = [&] {
    RunConfig config;
    Options options({.name = "train_gpt", .summary = ""});
    AddRunOptions(options, config);
    options.Parse(arguments);
    return PrepareShape(options, config, device, /*processes=*/1);
  };
  const int64_t window = prepare().window();
  const int64_t rows = std::max<int64_t>(1, (device.is_cuda() ? kGpuTokens : kCpuTokens) / window);
  arguments.push_back(StrCat("--train.batch_size=", rows));
  arguments.push_back(StrCat("--train.global_batch_size=", rows));
  return prepare();
}

}  // namespace

std::vector<int64_t> MeasuredDepths(Device device) {
  return device.is_cuda() ? std::vector<int64_t>{4, 8, 12} : std::vector<int64_t>{2, 4, 6};
}

MeasuredSteps MeasureSteps(const std::vector<std::string>& arguments, Device device, bool watches) {
  MeasuredSteps measured{.setup = SetupOf(arguments, device), .seconds = INFINITY};
  const RunSetup& setup = measured.setup;
  Gpt model(setup.model);
  FillModel(setup, model);
  const auto optimizer = MakeFreshOptimizer(setup, model);
  StepState state(device, /*seed=*/1);
  const int64_t rows = setup.config.train.batch_size;
  const Tensor ids = ops::RandInt(0, setup.model.vocab_size, {rows, setup.window()}, /*seed=*/1,
                                  DType::kI32, device);
  const auto all = static_cast<double>(rows * setup.window());
  KernelTimes kernels(device);
  const auto begin = Clock::now();
  for (int64_t step = 0; step < 2 || (step < kSteps && Clock::now() - begin < kEnough); ++step) {
    const bool timed = step > 0;  // the first chooses kernels
    const KernelTimes::Watch watch(watches && timed ? &kernels : nullptr);
    const auto start = Clock::now();
    {
      const auto training =
          optimizer->BeginStep(state, step, setup.config.optim.lr, {.first_sample = 0});
      Backward(model.Loss(ids, ids), training.Root(1 / all));
      optimizer->Step(state);
    }
    optimizer->ZeroGrad();
    Synchronize(CurrentStream(device));
    if (!timed) continue;
    const double seconds = SecondsSince(start);
    measured.seconds = std::min(measured.seconds, seconds);
    kernels.Add({.update_ms = 1e3 * seconds});
  }
  double ms = 0;
  measured.kernel_ms = kernels.Take();
  for (const auto& [name, of_kernel] : measured.kernel_ms) ms += of_kernel;
  for (auto& [name, of_kernel] : measured.kernel_ms) of_kernel *= 1e3 * measured.seconds / ms;
  return measured;
}

}  // namespace lockstep::models
