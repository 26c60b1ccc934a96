#include "kernels/muon/muon.h"

#include <cmath>

namespace lockstep::ops {

void MuonUpdate(std::span<const UpdateTensors> tensors, const MuonHyper& hyper,
                const StepState& state) {
  LS_CHECK(hyper.momentum >= 0 && hyper.momentum < 1, "muon: momentum must be in [0, 1), got ",
           hyper.momentum);
  LS_CHECK(hyper.steps >= 0 && hyper.steps < 100, "muon: steps must be in [0, 100), got ",
           hyper.steps);
  LS_CHECK(hyper.eps > 0 && std::isfinite(hyper.eps), "muon: eps must be positive, got ",
           hyper.eps);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& value = tensors[i].value;
    LS_CHECK(!value.defined() || value.ndim() == 2, "muon: tensor ", i, " must be a matrix, got ",
             value.Describe(), ": give others to another optimizer");
  }
  internal::PrepareUpdate("muon", tensors, kMuonStates, state);
  muon_update(CurrentStream(state.device()), tensors, hyper, state.device_values());
}

}  // namespace lockstep::ops
