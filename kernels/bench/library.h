// How long a vendor's library takes for the same work, where one can do it. For the benchmark only.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "kernels/op_case/op_case.h"

namespace lockstep {

struct LibraryCall {
  std::string library;
  std::function<void()> run;  // submits the work to the current stream
};

// For linear and matmul, forward or backward: the matrix products by bare cuBLASLt calls, without
// bias, activation and autograd's overhead. For attention in bf16 without dropout: cuDNN, where it
// is installed. Nothing for other ops and dtypes, nor on the CPU.
std::optional<LibraryCall> FindLibraryCall(const OpCase& c, const OpSample& sample,
                                           std::span<const Tensor> inputs, bool backward);

}  // namespace lockstep
