// A matrix product of tensors, as the arguments of the GEMM of either device.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// c = op(a) op(b), of contiguous matrices [rows, columns] or batches of these [batch, rows,
// columns]; op transposes where requested. GemmArgs is cpu::GemmArgs (kernels/cpu/gemm.h), which
// also has strides, or cuda::GemmArgs (kernels/matmul/gemm_cuda.h). Checks nothing.
template <class GemmArgs>
GemmArgs ProductOf(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                   const Tensor& c) {
  GemmArgs g;
  g.transpose_a = transpose_a;
  g.transpose_b = transpose_b;
  g.m = c.dim(-2);
  g.n = c.dim(-1);
  g.k = a.dim(transpose_a ? -2 : -1);
  g.dtype = a.dtype();
  g.a = a.raw_data();
  g.b = b.raw_data();
  g.c_dtype = c.dtype();
  g.c = c.raw_data();
  if (c.ndim() == 3) g.batch = c.dim(0);
  if constexpr (requires { g.lda; }) {
    g.lda = a.dim(-1);
    g.ldb = b.dim(-1);
    g.ldc = c.dim(-1);
    g.stride_a = a.dim(-2) * g.lda;
    g.stride_b = b.dim(-2) * g.ldb;
    g.stride_c = g.m * g.n;
  }
  return g;
}

}  // namespace lockstep
