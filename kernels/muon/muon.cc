#include "kernels/muon/muon.h"

#include <algorithm>
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
  const Stream stream = CurrentStream(state.device());
  for (const UpdateTensors& t : tensors) {
    if (t.value.numel() == 0) continue;
    const int64_t side = std::min(t.value.dim(0), t.value.dim(1));
    const DType dtype = StateDType(t.value);
    // Of zeros, since the first step of an update reads what it overwrites.
    const Tensor matrices = Tensor::Zeros({2, t.value.numel()}, dtype, t.value.device());
    const Tensor squares = Tensor::Empty({2, side, side}, dtype, t.value.device());
    muon_update(stream, t, matrices, squares, hyper, state.device_values());
  }
}

}  // namespace lockstep::ops
