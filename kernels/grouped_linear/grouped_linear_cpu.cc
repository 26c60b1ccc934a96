#include <cstring>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/grouped_linear/grouped_linear.h"

namespace lockstep::cpu {
namespace {

// Products by a transposed B have bits of their own below this many rows (kernels/cpu/gemm.h), so
// smaller groups are padded with zeros.
constexpr int64_t kFewestRows = 8;

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

// Groups of few rows, each on its own kFewestRows rows.
struct Padded {
  std::vector<int64_t> groups;
  Tensor x, y;

  Padded(const GroupedLinearForwardArgs& args, std::span<const int32_t> offsets) {
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      const int64_t rows = offsets[e + 1] - offsets[e];
      if (rows > 0 && rows < kFewestRows) groups.push_back(static_cast<int64_t>(e));
    }
    const auto n = static_cast<int64_t>(groups.size()) * kFewestRows;
    x = Tensor::Zeros({n, args.x.dim(1)}, args.x.dtype());
    y = Tensor::Empty({n, args.y.dim(1)}, args.y.dtype());
    ForEachGroup(args.x, x, offsets,
                 [](char* rows, char* padded, size_t bytes) { std::memcpy(padded, rows, bytes); });
  }

  void CopyResults(const Tensor& to, std::span<const int32_t> offsets) const {
    ForEachGroup(to, y, offsets,
                 [](char* rows, char* padded, size_t bytes) { std::memcpy(rows, padded, bytes); });
  }

 private:
  template <class F>
  void ForEachGroup(const Tensor& all, const Tensor& padded, std::span<const int32_t> offsets,
                    const F& f) const {
    const int64_t row_bytes = all.dim(1) * SizeOf(all.dtype());
    if (row_bytes == 0) return;
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto e = static_cast<size_t>(groups[i]);
      f(Row(all, offsets[e]), Row(padded, static_cast<int64_t>(i) * kFewestRows),
        static_cast<size_t>((offsets[e + 1] - offsets[e]) * row_bytes));
    }
  }
};

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
  const Padded padded(args, offsets);
  std::vector<GemmArgs> products;
  size_t next_padded = 0;
  for (int64_t e = 0; e < args.weight.dim(0); ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e];
    if (rows == 0) continue;
    const bool pad = rows < kFewestRows;
    const int64_t at = pad ? static_cast<int64_t>(next_padded++) * kFewestRows : offsets[e];
    const Tensor &x = pad ? padded.x : args.x, &y = pad ? padded.y : args.y;
    products.push_back(Product(x.dtype(), Row(x, at), false, Row(args.weight, e * n), true,
                               pad ? kFewestRows : rows, n, k, y.dtype(), Row(y, at), false));
  }
  Gemm(products);
  padded.CopyResults(args.y, offsets);
}

void GroupedLinearBackwardCpu(Stream, const GroupedLinearBackwardArgs& args) {
  const auto offsets = OffsetsOf(args.offsets);
  const Shape shape = args.dweight.defined() ? args.dweight.shape() : args.weight.shape();
  const int64_t experts = shape[0], n = shape[1], k = shape[2];
  const DType dtype = args.dy.dtype();
  std::vector<GemmArgs> products;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = offsets[e], rows = offsets[e + 1] - begin;
    if (args.dx.defined() && rows > 0) {
      products.push_back(Product(dtype, Row(args.dy, begin), false, Row(args.weight, e * n), false,
                                 rows, k, n, dtype, Row(args.dx, begin), args.accumulate_x));
    }
    if (args.dweight.defined()) {  // also of no rows: zeros
      products.push_back(Product(dtype, Row(args.dy, begin), true, Row(args.x, begin), false, n, k,
                                 rows, args.dweight.dtype(), Row(args.dweight, e * n),
                                 args.accumulate_weight));
    }
  }
  Gemm(products);
}

LS_REGISTER(grouped_linear_forward, DeviceType::kCpu, GroupedLinearForwardCpu);
LS_REGISTER(grouped_linear_backward, DeviceType::kCpu, GroupedLinearBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
