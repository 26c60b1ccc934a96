#include "kernels/op_case/op_case.h"
#include "kernels/reshape/reshape.h"

namespace lockstep {
namespace {

OpSample Reshape(const std::string& name, const InputSpec& x, const Shape& to,
                 const Shape& resolved) {
  return {.name = name,
          .inputs = {x},
          .run = [to](std::span<const Tensor> in) { return std::vector{ops::Reshape(in[0], to)}; },
          .reference =
              [resolved](std::span<const RefTensor> in) {
                RefTensor y = in[0];
                y.shape = resolved;
                return std::vector{y};
              }};
}

OpSample Contiguous(const std::string& name, const InputSpec& x) {
  OpSample s = Reshape(name, x, x.shape, x.shape);
  s.run = [](std::span<const Tensor> in) {
    const Tensor y = ops::Contiguous(in[0]);
    LS_INVARIANT(y.is_contiguous());
    return std::vector{y};
  };
  return s;
}

// `copied`: followed by Contiguous, as the benchmark of a view would show nothing.
OpSample Transpose(const std::string& name, const InputSpec& x, int a, int b, bool copied) {
  return {.name = name,
          .inputs = {x},
          .run =
              [=](std::span<const Tensor> in) {
                const Tensor y = ops::Transpose(in[0], a, b);
                return std::vector{copied ? ops::Contiguous(y) : y};
              },
          .reference =
              [=](std::span<const RefTensor> in) {
                const Shape from = in[0].shape;
                const int ndim = from.ndim();
                const int i = a < 0 ? a + ndim : a, j = b < 0 ? b + ndim : b;
                Shape to = from;
                std::swap(to[i], to[j]);
                RefTensor y(to);
                for (size_t at = 0; at < y.data.size(); ++at) {
                  std::vector<int64_t> index(ndim);
                  auto rest = static_cast<int64_t>(at);
                  for (int d = ndim - 1; d >= 0; --d) {
                    index[d] = rest % to[d];
                    rest /= to[d];
                  }
                  std::swap(index[i], index[j]);
                  int64_t offset = 0;
                  for (int d = 0; d < ndim; ++d) offset = offset * from[d] + index[d];
                  y.data[at] = in[0].data[offset];
                }
                return std::vector{y};
              }};
}

OpCase Make() {
  OpCase c;
  c.name = "reshape";
  c.dtypes = {DType::kF64, DType::kF32, DType::kBF16};
  // Nothing is computed.
  c.tolerances = {{DType::kF64, {}}, {DType::kF32, {}}, {DType::kBF16, {}}};
  c.samples = [] {
    const InputSpec odd{.shape = {3, 5, 4}};
    const InputSpec strided{.shape = {3, 5, 4}, .non_contiguous = true};
    OpSample heads = Transpose("heads", {.shape = {4, 1024, 12, 64}}, 1, 2, true);
    heads.elements_moved = heads.backward_elements_moved = 2.0 * 4 * 1024 * 768;
    heads.benchmark_only = true;
    OpSample matrix = Transpose("matrix", {.shape = {2048, 2048}}, 0, 1, true);
    matrix.elements_moved = matrix.backward_elements_moved = 2.0 * 2048 * 2048;
    matrix.benchmark_only = true;
    return std::vector<OpSample>{Reshape("empty", {.shape = {0, 3}}, {3, 0, 2}, {3, 0, 2}),
                                 Reshape("scalar", {.shape = {1, 1}}, {}, {}),
                                 Reshape("odd", odd, {5, 12}, {5, 12}),
                                 Reshape("inferred", odd, {-1, 6}, {10, 6}),
                                 Reshape("strided", strided, {60}, {60}),
                                 Contiguous("contiguous", odd),
                                 Contiguous("contiguous_strided", strided),
                                 Transpose("transpose", odd, 0, 2, false),
                                 Transpose("transpose_copied", odd, -1, 1, true),
                                 Transpose("transpose_strided", strided, 0, 1, true),
                                 Transpose("transpose_same", odd, 1, 1, false),
                                 Transpose("chunks", {.shape = {150, 300}}, 0, 1, true),
                                 heads,
                                 matrix};
  };
  c.errors = [] {
    return std::vector<ErrorSample>{
        {"elements",
         [](Device d) {
           ops::Reshape(Tensor::Zeros({2, 3}, DType::kF32, d), {4});
         },
         "View([4]) of a tensor of shape [2, 3]: the numbers of elements differ"},
        {"not_divisible",
         [](Device d) {
           ops::Reshape(Tensor::Zeros({2, 3}, DType::kF32, d), {-1, 4});
         },
         "View([-1, 4]) of a tensor of shape [2, 3]"},
        {"no_such_dimension",
         [](Device d) {
           ops::Transpose(Tensor::Zeros({2, 3}, DType::kF32, d), 0, 2);
         },
         "transpose: there is no dimension 2 in a tensor of shape [2, 3]"}};
  };
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
