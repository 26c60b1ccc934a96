#include "kernels/ema/ema.h"

#include <vector>

namespace lockstep::ops {

void EmaUpdate(std::span<const UpdateTensors> tensors, const EmaHyper& hyper,
               const StepState& state) {
  LS_CHECK(hyper.decay >= 0 && hyper.decay < 1, "ema: decay must be in [0, 1), got ", hyper.decay);
  std::vector<UpdateTensors> averages;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const UpdateTensors& t = tensors[i];
    if (!t.average.defined()) continue;
    LS_CHECK(t.average.dtype() == StateDType(t.value), "ema: the average of tensor ", i,
             " must be ", StateDType(t.value), ", got ", t.average.Describe());
    averages.push_back(
        {.value = t.average, .grad = t.master.defined() ? t.master : t.value, .states = {}});
  }
  internal::PrepareUpdate("ema", averages, {}, state);
  ema_update(CurrentStream(state.device()), averages, hyper, state.device_values());
}

}  // namespace lockstep::ops
