#include "core/error.h"
#include "kernels/cpu/gemm.h"
#include "kernels/matmul/matmul.h"

namespace lockstep::cpu {
namespace {

void MatMulCpu(Stream, const MatMulArgs& args) {
  GemmArgs g;
  g.transpose_a = args.transpose_a;
  g.transpose_b = args.transpose_b;
  g.batch = args.c.dim(0);
  g.m = args.c.dim(1);
  g.n = args.c.dim(2);
  g.k = args.a.dim(args.transpose_a ? 1 : 2);
  g.dtype = args.a.dtype();
  g.a = args.a.raw_data();
  g.lda = args.a.dim(2);
  g.stride_a = args.a.dim(1) * args.a.dim(2);
  g.b = args.b.raw_data();
  g.ldb = args.b.dim(2);
  g.stride_b = args.b.dim(1) * args.b.dim(2);
  g.c_dtype = args.c.dtype();
  g.c = args.c.raw_data();
  g.ldc = g.n;
  g.stride_c = g.m * g.n;
  g.accumulate = args.accumulate;
  Gemm(g);
}

LS_REGISTER(matmul_slot, DeviceType::kCpu, MatMulCpu);

}  // namespace
}  // namespace lockstep::cpu
