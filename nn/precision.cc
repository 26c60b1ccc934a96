#include "nn/precision.h"

#include "kernels/cast/cast.h"

namespace lockstep::nn {
namespace {

void SetPrecision(Module& module, Device device, std::optional<uint64_t> seed,
                  const Precision& precision) {
  const bool f64 = precision.compute == DType::kF64;
  for (const auto& p : module.Parameters()) {
    if (!IsFloating(p->value().dtype())) continue;
    if (p->value().dtype() != precision.compute) p->Materialize(device, precision.compute, seed);
    p->leaf().AskDType(f64 ? DType::kF64 : precision.reduction);
  }
}

}  // namespace

Tensor InPrecision::Forward(const Tensor& x) {
  const bool floating = IsFloating(x.dtype());
  const Tensor y = base_(floating ? ops::Cast(x, precision_.compute) : x);
  return ops::Cast(y, precision_.output.value_or(floating ? x.dtype() : precision_.compute));
}

void Materialize(Module& model, Device device, std::optional<uint64_t> seed,
                 const Precision& precision) {
  model.Materialize(device, seed, precision.compute);
  SetPrecision(model, device, seed, precision);
  // Parts come before the parts within them.
  for (const auto& [path, module] : model.NamedModules()) {
    if (const auto* part = dynamic_cast<const InPrecision*>(module)) {
      SetPrecision(*module, device, seed, part->precision());
    }
  }
}

}  // namespace lockstep::nn
