// What share of a device's peak a run achieves: the only place that computes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/device.h"

namespace lockstep::models {

// The datasheet's peak rate of dense matrix products for a GPU of this name ("NVIDIA H200"), in
// FLOP/s; `precision` as in train.precision. None for a GPU that is not listed (such as a laptop's
// or another variant, or a slice, of one that is), a simulated one, and a CPU.
std::optional<double> DatasheetFlops(const std::string& name, const std::string& precision);

// FLOP/s of a large square matrix product in `precision`, by the kernels that training uses. Takes
// some tens of milliseconds, and frees its memory. None on a simulated GPU.
std::optional<double> MeasureGemmFlops(Device device, const std::string& precision);

struct Utilization {
  // By llm.c's formula, 6N + 6LCT for forward and backward of a causal model: Gpt::FlopsPerToken.
  double flops_per_token = 0;
  int64_t ranks = 1;                 // each with a device
  std::optional<double> peak_flops;  // of one device: DatasheetFlops
  std::optional<double> gemm_flops;  // of one device: MeasureGemmFlops

  // Model FLOPs utilization: the share of the datasheet's peak. `tokens_per_second` is that of all
  // ranks together.
  std::optional<double> Mfu(double tokens_per_second) const;
  // Raises the measured rate of matrix products to that of training: where it was lower, others
  // used the device while it was measured.
  void Correct(double tokens_per_second);
  // The share of the measured rate of matrix products.
  std::optional<double> GemmShare(double tokens_per_second) const;
  // "mfu 41% (57% of GEMM)"; a CPU has no datasheet peak: "61% of GEMM"; "" if nothing is known.
  std::string Describe(double tokens_per_second) const;
};

// What is known of the device before the first step.
Utilization MeasureUtilization(Device device, const std::string& precision, int64_t ranks,
                               double flops_per_token);

}  // namespace lockstep::models
