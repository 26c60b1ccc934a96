#include "kernels/muon/muon.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::ops {
namespace {

// Matrices of at most so many elements are updated together, so many elements of them at a time: on
// the CPU, where threads gain little in products as small as theirs, each by a thread.
constexpr int64_t kSmall = 1 << 16, kTogether = 1 << 20;

MuonMatrix WithWorkspace(const UpdateTensors& t, DType dtype) {
  const int64_t n = t.value.numel(), side = std::min(t.value.dim(0), t.value.dim(1));
  const Device device = t.value.device();
  const DType wide = StateDType(t.value);
  const bool narrow = dtype == DType::kBF16;
  // Of zeros, since the first step of an update reads what it overwrites.
  return {.tensors = &t,
          .matrices = Tensor::Zeros({narrow ? 1 : 2, n}, wide, device),
          .narrow = narrow ? Tensor::Empty({2, n}, dtype, device) : Tensor(),
          .squares = Tensor::Empty({2, side, side}, narrow ? dtype : wide, device)};
}

}  // namespace

void MuonUpdate(std::span<const UpdateTensors> tensors, const MuonHyper& hyper,
                const StepState& state) {
  LS_CHECK(hyper.momentum >= 0 && hyper.momentum < 1, "muon: momentum must be in [0, 1), got ",
           hyper.momentum);
  LS_CHECK(hyper.steps >= 0 && hyper.steps < 100, "muon: steps must be in [0, 100), got ",
           hyper.steps);
  LS_CHECK(hyper.eps > 0 && std::isfinite(hyper.eps), "muon: eps must be positive, got ",
           hyper.eps);
  LS_CHECK(hyper.dtype == DType::kF32 || hyper.dtype == DType::kBF16,
           "muon: dtype must be f32 or bf16, got ", hyper.dtype);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& value = tensors[i].value;
    LS_CHECK(!value.defined() || value.ndim() == 2, "muon: tensor ", i, " must be a matrix, got ",
             value.Describe(), ": give others to another optimizer");
  }
  internal::PrepareUpdate("muon", tensors, kMuonStates, state);
  const Stream stream = CurrentStream(state.device());
  std::vector<MuonMatrix> together;
  int64_t elements = 0;
  const auto update = [&] {
    if (!together.empty()) muon_update(stream, together, hyper, state.device_values());
    together.clear();
    elements = 0;
  };
  for (const UpdateTensors& t : tensors) {
    const int64_t n = t.value.numel();
    if (n == 0) continue;
    if (n > kSmall || elements + n > kTogether) update();
    together.push_back(WithWorkspace(t, hyper.dtype));
    elements += n;
    if (n > kSmall) update();
  }
  update();
}

}  // namespace lockstep::ops
