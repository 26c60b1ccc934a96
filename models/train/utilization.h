// How much of what a device can compute a run makes use of: the only place that says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/device.h"

namespace lockstep::models {

// The peak of matrix products that the vendor's datasheet names for a GPU of this name ("NVIDIA
// H200"), dense, in FLOP/s; `precision` as in train.precision. None for a GPU that is not listed (a
// laptop's or another variant of one that is, a slice of one), a simulated one, and a CPU.
std::optional<double> DatasheetFlops(const std::string& name, const std::string& precision);

// FLOP/s of a large square matrix product in `precision`, by the kernels that training uses: some
// tens of milliseconds. None on a simulated GPU. Its memory is given back.
std::optional<double> MeasureGemmFlops(Device device, const std::string& precision);

struct Utilization {
  // By llm.c's formula, 6N + 6LCT for forward and backward of a causal model: Gpt::FlopsPerToken.
  double flops_per_token = 0;
  int64_t ranks = 1;                 // a device each
  std::optional<double> peak_flops;  // of one device: DatasheetFlops
  std::optional<double> gemm_flops;  // of one device: MeasureGemmFlops

  // Model FLOPs utilization: the share of the datasheet's peak. `tokens_per_second` is of all
  // ranks.
  std::optional<double> Mfu(double tokens_per_second) const;
  // The share of the measured rate of matrix products.
  std::optional<double> GemmShare(double tokens_per_second) const;
  // "mfu 41% (57% of GEMM)"; a CPU has no datasheet peak: "61% of GEMM"; "" where nothing is known.
  std::string Describe(double tokens_per_second) const;
};

// What is known of the device before the first step.
Utilization MeasureUtilization(Device device, const std::string& precision, int64_t ranks,
                               double flops_per_token);

}  // namespace lockstep::models
