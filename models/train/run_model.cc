#include "models/train/run_model.h"

#include "core/cuda/blaslt.h"
#include "core/cuda/device_info.h"
#include "kernels/cpu/gemm.h"
#include "models/checkpoint/adapter_base.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/options/plan_rules.h"
#include "models/report/run_progress.h"
#include "nn/precision.h"

namespace lockstep::models {

// fp32 and tf32 differ in how matrices are multiplied, not in what tensors hold.
void MaterializeFor(const RunSetup& setup, Device device, Module& model) {
  const auto seed = static_cast<uint64_t>(setup.config.seed);
  const bool copied = setup.start.going_on && DividesCopies(setup.config.parallel);
  const bool loads = !setup.weights.empty() || copied;
  nn::Materialize(model, device, loads ? std::nullopt : std::optional(seed),
                  {.compute = WeightDType(setup.config.train.precision),
                   .reduction = WeightDType(setup.config.train.grad_dtype)});
  if (!loads) return;
  for (const auto& [name, p] : model.NamedParameters()) {
    if (IsOfAdapter(name)) p->Initialize(seed);
  }
}

std::string ArithmeticOf(const RunSetup& setup) {
  if (setup.device.is_cuda()) return cuda::GetDeviceInfo(setup.device).name;
  return cpu::DescribeProducts(WeightDType(setup.config.train.precision));
}

void FillModel(const RunSetup& setup, Gpt& model) {
  cuda::AllowTf32(setup.config.train.precision == "tf32");
  MaterializeFor(setup, setup.device, model);
  if (setup.start.going_on && DividesCopies(setup.config.parallel)) return;
  const std::string& weights = setup.weights;
  if (!weights.empty()) LoadWeights(weights, model);
  const std::string from = AdaptersOf(setup);
  if (from.empty()) return;
  const PeftAdapter adapter = PeftAdapter::Open(from);
  CheckBase(adapter, weights, Warn);
  adapter.LoadInto(model);
}

}  // namespace lockstep::models
