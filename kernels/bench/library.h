// What a vendor's library needs for the same work, where there is one that does it. Of the
// benchmark alone.
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

// Of linear's and matmul's forward or backward the products of matrices by bare cuBLASLt calls,
// without bias, activation and what autograd costs; attention in bf16 by cuDNN, where it is and has
// no dropout to do. Nothing for other ops, dtypes and the CPU.
std::optional<LibraryCall> FindLibraryCall(const OpCase& c, const OpSample& sample,
                                           std::span<const Tensor> inputs, bool backward);

}  // namespace lockstep
