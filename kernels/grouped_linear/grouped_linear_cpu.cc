#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/grouped_linear/grouped_linear.h"

namespace lockstep::cpu {
namespace {

char* Row(const Tensor& x, int64_t row) {
  return static_cast<char*>(x.raw_data()) + row * x.dim(-1) * SizeOf(x.dtype());
}

void CheckOffsets(std::span<const int32_t> offsets, int64_t rows) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    LS_CHECK(offsets[e] <= offsets[e + 1], "grouped_linear: the offsets must ascend, but ",
             offsets[e], " comes before ", offsets[e + 1]);
  }
  LS_CHECK(offsets.front() == 0 && offsets.back() == rows,
           "grouped_linear: the offsets must go from 0 to the ", rows, " rows of x, got ",
           offsets.front(), " to ", offsets.back());
}

std::span<const int32_t> OffsetsOf(const Tensor& offsets) {
  return {offsets.data<int32_t>(), static_cast<size_t>(offsets.numel())};
}

// c [m, n] = op(a) op(b), with rows of these lengths.
GemmArgs Product(DType dtype, const void* a, bool transpose_a, const void* b, bool transpose_b,
                 int64_t m, int64_t n, int64_t k, DType c_dtype, void* c, bool accumulate) {
  GemmArgs g;
  g.transpose_a = transpose_a;
  g.transpose_b = transpose_b;
  g.m = m;
  g.n = n;
  g.k = k;
  g.dtype = dtype;
  g.a = a;
  g.lda = transpose_a ? m : k;
  g.b = b;
  g.ldb = transpose_b ? k : n;
  g.c_dtype = c_dtype;
  g.c = c;
  g.ldc = n;
  g.accumulate = accumulate;
  return g;
}

void GroupedLinearForwardCpu(Stream, const GroupedLinearForwardArgs& args) {
  const auto offsets = OffsetsOf(args.offsets);
  CheckOffsets(offsets, args.x.dim(0));
  const int64_t n = args.weight.dim(1), k = args.weight.dim(2);
  std::vector<GemmArgs> products;
  for (int64_t e = 0; e < args.weight.dim(0); ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e];
    if (rows == 0) continue;
    products.push_back(Product(args.x.dtype(), Row(args.x, offsets[e]), false,
                               Row(args.weight, e * n), true, rows, n, k, args.y.dtype(),
                               Row(args.y, offsets[e]), false));
  }
  Gemm(products);
}

void GroupedLinearBackwardCpu(Stream, const GroupedLinearBackwardArgs& args) {
  const auto offsets = OffsetsOf(args.offsets);
  const Shape shape =
      args.dweight.tensor.defined() ? args.dweight.tensor.shape() : args.weight.shape();
  const int64_t experts = shape[0], n = shape[1], k = shape[2];
  const DType dtype = args.dy.dtype();
  std::vector<GemmArgs> products;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = offsets[e], rows = offsets[e + 1] - begin;
    if (args.dx.tensor.defined() && rows > 0) {
      products.push_back(Product(dtype, Row(args.dy, begin), false, Row(args.weight, e * n), false,
                                 rows, k, n, dtype, Row(args.dx.tensor, begin),
                                 args.dx.accumulate));
    }
    if (args.dweight.tensor.defined()) {  // also of no rows: zeros
      products.push_back(Product(dtype, Row(args.dy, begin), true, Row(args.x, begin), false, n, k,
                                 rows, args.dweight.tensor.dtype(), Row(args.dweight.tensor, e * n),
                                 args.dweight.accumulate));
    }
  }
  Gemm(products);
}

LS_REGISTER(grouped_linear_forward, DeviceType::kCpu, GroupedLinearForwardCpu);
LS_REGISTER(grouped_linear_backward, DeviceType::kCpu, GroupedLinearBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
