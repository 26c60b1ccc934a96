#include "core/error.h"
#include "kernels/cpu/gemm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/product_of.h"

namespace lockstep::cpu {
namespace {

void MatMulCpu(Stream, const MatMulArgs& args) {
  auto g = ProductOf<GemmArgs>(args.a, args.transpose_a, args.b, args.transpose_b, args.c);
  g.accumulate = args.accumulate;
  Gemm(g);
}

LS_REGISTER(matmul_slot, DeviceType::kCpu, MatMulCpu);

}  // namespace
}  // namespace lockstep::cpu
