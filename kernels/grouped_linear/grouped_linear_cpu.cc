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

void GroupedLinearForwardCpu(Stream, const GroupedLinearForwardArgs& args) {
  const auto offsets = OffsetsOf(args.offsets);
  CheckOffsets(offsets, args.x.dim(0));
  const int64_t n = args.weight.dim(1), k = args.weight.dim(2);
  std::vector<GemmArgs> products;
  for (int64_t e = 0; e < args.weight.dim(0); ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e];
    if (rows == 0) continue;
    products.push_back(Dense({.transpose_b = true,
                              .m = rows,
                              .n = n,
                              .k = k,
                              .dtype = args.x.dtype(),
                              .a = Row(args.x, offsets[e]),
                              .b = Row(args.weight, e * n),
                              .c_dtype = args.y.dtype(),
                              .c = Row(args.y, offsets[e])}));
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
      products.push_back(Dense({.m = rows,
                                .n = k,
                                .k = n,
                                .dtype = dtype,
                                .a = Row(args.dy, begin),
                                .b = Row(args.weight, e * n),
                                .c_dtype = dtype,
                                .c = Row(args.dx.tensor, begin),
                                .accumulate = args.dx.accumulate}));
    }
    if (args.dweight.tensor.defined()) {  // also of no rows: zeros
      products.push_back(Dense({.transpose_a = true,
                                .m = n,
                                .n = k,
                                .k = rows,
                                .dtype = dtype,
                                .a = Row(args.dy, begin),
                                .b = Row(args.x, begin),
                                .c_dtype = args.dweight.tensor.dtype(),
                                .c = Row(args.dweight.tensor, e * n),
                                .accumulate = args.dweight.accumulate}));
    }
  }
  Gemm(products);
}

LS_REGISTER(grouped_linear_forward, DeviceType::kCpu, GroupedLinearForwardCpu);
LS_REGISTER(grouped_linear_backward, DeviceType::kCpu, GroupedLinearBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
