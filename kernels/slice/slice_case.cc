#include "kernels/op_case/op_case.h"
#include "kernels/slice/slice.h"

namespace lockstep {
namespace {

RefTensor Part(const RefTensor& x, int dim, int64_t begin, int64_t end) {
  Shape shape = x.shape;
  shape[dim] = end - begin;
  RefTensor y(shape);
  int64_t inner = 1;
  for (int i = dim + 1; i < shape.ndim(); ++i) inner *= shape[i];
  for (size_t i = 0; i < y.data.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t outer = at / (inner * shape[dim]), k = at / inner % shape[dim];
    y.data[i] = x.data[(outer * x.shape[dim] + begin + k) * inner + at % inner];
  }
  return y;
}

// `begin` and `end` as given to the op; both from the front in `x`.
OpSample Slice(const std::string& name, const InputSpec& x, int dim, int64_t begin, int64_t end) {
  const int64_t size = x.shape[dim];
  const int64_t from = begin < 0 ? begin + size : begin, to = end < 0 ? end + size : end;
  const int at = dim < 0 ? dim + x.shape.ndim() : dim;
  return {
      .name = name,
      .inputs = {x},
      .run =
          [=](std::span<const Tensor> in) {
            return std::vector{ops::Slice(in[0], dim, begin, end)};
          },
      .reference =
          [=](std::span<const RefTensor> in) { return std::vector{Part(in[0], at, from, to)}; }};
}

OpSample Split(const std::string& name, const InputSpec& x, const std::vector<int64_t>& sizes,
               int dim) {
  return {.name = name,
          .inputs = {x},
          .run = [=](std::span<const Tensor> in) { return ops::Split(in[0], sizes, dim); },
          .reference =
              [=](std::span<const RefTensor> in) {
                std::vector<RefTensor> parts;
                int64_t begin = 0;
                for (int64_t size : sizes) {
                  parts.push_back(Part(in[0], dim, begin, begin + size));
                  begin += size;
                }
                return parts;
              }};
}

// Overlapping slices of one tensor: their gradients meet in it.
OpSample Overlapping() {
  OpSample s = Slice("overlapping", {.shape = {9, 4}}, 0, 2, 7);
  s.run = [](std::span<const Tensor> in) {
    return std::vector{ops::Slice(in[0], 0, 2, 7), ops::Slice(in[0], 0, 5, 9),
                       ops::Slice(in[0], 0, 0, 3)};
  };
  s.reference = [](std::span<const RefTensor> in) {
    return std::vector{Part(in[0], 0, 2, 7), Part(in[0], 0, 5, 9), Part(in[0], 0, 0, 3)};
  };
  return s;
}

// As queries, keys and values come out of one projection.
OpSample Thirds(const std::string& name, const Shape& shape) {
  const int64_t size = shape[-1] / 3;
  OpSample s = Split(name, {.shape = shape}, {size, size, size}, shape.ndim() - 1);
  s.run = [](std::span<const Tensor> in) { return ops::Split(in[0], 3, -1); };
  return s;
}

OpCase Make() {
  OpCase c;
  c.name = "slice";
  c.dtypes = {DType::kF64, DType::kF32, DType::kBF16};
  // Nothing is computed.
  c.tolerances = {{DType::kF64, {}}, {DType::kF32, {}}, {DType::kBF16, {}}};
  c.gradient_tolerances = {{DType::kF32, {1e-7, 0, ""}}, {DType::kBF16, {8e-3, 0, ""}}};
  c.samples = [] {
    const InputSpec odd{.shape = {5, 7, 3}};
    const InputSpec strided{.shape = {5, 7}, .non_contiguous = true};
    OpSample large = Thirds("large_qkv", {4096, 2304});
    large.elements_moved = 1;  // a view
    large.backward_elements_moved = 2.0 * 4096 * 2304;
    large.benchmark_only = true;
    return std::vector<OpSample>{Slice("empty", {.shape = {0, 3}}, 0, 0, 0),
                                 Slice("empty_slice", odd, 1, 4, 4),
                                 Slice("one", {.shape = {1}}, 0, 0, 1),
                                 Slice("whole", odd, 0, 0, 5),
                                 Slice("first", odd, 0, 1, 4),
                                 Slice("middle", odd, 1, 2, 6),
                                 Slice("last", odd, -1, 1, 2),
                                 Slice("from_the_end", odd, 1, -5, -1),
                                 Slice("strided", strided, 1, 2, 5),
                                 Slice("chunks", {.shape = {150, 300}}, 1, 20, 200),
                                 Overlapping(),
                                 Split("split", {.shape = {4, 9}}, {2, 0, 3, 4}, 1),
                                 Split("split_first", {.shape = {9, 4}}, {1, 8}, 0),
                                 Thirds("qkv", {2, 5, 12}),
                                 large};
  };
  c.errors = [] {
    return std::vector<ErrorSample>{
        {"outside",
         [](Device d) {
           ops::Slice(Tensor::Zeros({2, 3}, DType::kF32, d), 1, 1, 4);
         },
         "slice: [1, 4) does not lie within dimension 1 of a tensor of shape [2, 3]"},
        {"backwards",
         [](Device d) {
           ops::Slice(Tensor::Zeros({2, 3}, DType::kF32, d), 1, 2, 1);
         },
         "slice: [2, 1) does not lie within"},
        {"no_such_dimension",
         [](Device d) {
           ops::Slice(Tensor::Zeros({2, 3}, DType::kF32, d), 2, 0, 1);
         },
         "slice: there is no dimension 2"},
        {"split_sizes",
         [](Device d) {
           ops::Split(Tensor::Zeros({5}, DType::kF32, d), std::vector<int64_t>{2, 2}, 0);
         },
         "split: the sizes add up to 4, but dimension 0 of a tensor of shape [5] has 5"},
        {"split_too_large",
         [](Device d) {
           ops::Split(Tensor::Zeros({5}, DType::kF32, d), std::vector<int64_t>{2, 4}, 0);
         },
         "split: the sizes must not be negative and add up to 5"},
        {"split_unequal", [](Device d) { ops::Split(Tensor::Zeros({5}, DType::kF32, d), 2, 0); },
         "does not divide into 2 equal parts"}};
  };
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
