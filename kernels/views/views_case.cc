// The views of Tensor (core/tensor.h), whose gradients are copied and summed by kernels.
#include <functional>

#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

using View = std::function<Tensor(const Tensor&)>;
// The coordinates in x of an element of the view.
using Source = std::function<Shape(Shape)>;

Shape Coordinates(int64_t at, const Shape& shape) {
  Shape c = shape;
  for (int d = shape.ndim(); d-- > 0; at /= shape[d]) c[d] = at % shape[d];
  return c;
}

RefTensor Seen(const RefTensor& x, const Shape& shape, const Source& source) {
  RefTensor y(shape);
  const Shape strides = x.shape.ContiguousStrides();
  for (size_t i = 0; i < y.data.size(); ++i) {
    const Shape from = source(Coordinates(static_cast<int64_t>(i), shape));
    int64_t at = 0;
    for (int d = 0; d < from.ndim(); ++d) at += from[d] * strides[d];
    y.data[i] = x.data[at];
  }
  return y;
}

OpSample Sample(const std::string& name, const InputSpec& x, const View& view, const Shape& shape,
                const Source& source) {
  return {.name = name,
          .inputs = {x},
          .run = [=](TensorSpan in) { return view(in[0]); },
          .reference = [=](RefSpan in) { return Seen(in[0], shape, source); }};
}

// In another shape, with the same order.
OpSample Reshape(const std::string& name, const InputSpec& x, const Shape& to,
                 const Shape& resolved) {
  OpSample s = Sample(name, x, [to](const Tensor& t) { return t.Reshape(to); }, resolved, {});
  s.reference = [resolved](RefSpan in) {
    RefTensor y = in[0];
    y.shape = resolved;
    return y;
  };
  return s;
}

OpSample Contiguous(const std::string& name, const InputSpec& x) {
  const auto contiguous = [](const Tensor& t) {
    const Tensor y = t.Contiguous();
    LS_INVARIANT(y.is_contiguous());
    return y;
  };
  return Sample(name, x, contiguous, x.shape, [](const Shape& c) { return c; });
}

// `copied`: followed by Contiguous, as the benchmark of a view would show nothing.
OpSample Permute(const std::string& name, const InputSpec& x, const std::vector<int>& order,
                 bool copied = false) {
  Shape to;
  for (int d : order) to.push_back(x.shape[d]);
  OpSample s = Sample(
      name, x,
      [=](const Tensor& t) {
        const Tensor y = t.Permute(order);
        return copied ? y.Contiguous() : y;
      },
      to,
      [=](const Shape& c) {
        Shape from = c;
        for (size_t i = 0; i < order.size(); ++i) from[order[i]] = c[static_cast<int>(i)];
        return from;
      });
  return s;
}

OpSample CopiedAtScale(const std::string& name, const Shape& shape, const std::vector<int>& order) {
  OpSample s = Permute(name, {.shape = shape}, order, true);
  const double moved = 2.0 * static_cast<double>(shape.numel());
  s.benchmark = {.elements = moved, .backward_elements = moved};
  return s;
}

OpSample Transpose(const std::string& name, const InputSpec& x, int a, int b) {
  const int i = a < 0 ? a + x.shape.ndim() : a, j = b < 0 ? b + x.shape.ndim() : b;
  Shape to = x.shape;
  std::swap(to[i], to[j]);
  return Sample(
      name, x, [=](const Tensor& t) { return t.Transpose(a, b); }, to,
      [=](Shape c) { return std::swap(c[i], c[j]), c; });
}

// `begin` and `end` as given to the view; `from` is the same from the front.
OpSample Slice(const std::string& name, const InputSpec& x, int dim, int64_t begin, int64_t end) {
  const int64_t size = x.shape[dim];
  const int64_t from = begin < 0 ? begin + size : begin, to = end < 0 ? end + size : end;
  Shape shape = x.shape;
  shape[dim] = to - from;
  return Sample(
      name, x, [=](const Tensor& t) { return t.Slice(dim, begin, end); }, shape,
      [=](Shape c) { return c[dim] += from, c; });
}

RefTensor Part(const RefTensor& x, int dim, int64_t begin, int64_t end) {
  Shape shape = x.shape;
  shape[dim] = end - begin;
  return Seen(x, shape, [=](Shape c) { return c[dim] += begin, c; });
}

// Overlapping slices of one tensor: their gradients meet in it.
OpSample Overlapping() {
  OpSample s = Slice("overlapping", {.shape = {9, 4}}, 0, 2, 7);
  s.run = [](TensorSpan in) {
    return std::vector{in[0].Slice(0, 2, 7), in[0].Slice(0, 5, 9), in[0].Slice(0, 0, 3)};
  };
  s.reference = [](RefSpan in) {
    return std::vector{Part(in[0], 0, 2, 7), Part(in[0], 0, 5, 9), Part(in[0], 0, 0, 3)};
  };
  return s;
}

OpSample Split(const std::string& name, const InputSpec& x, const std::vector<int64_t>& sizes,
               int dim) {
  return {.name = name,
          .inputs = {x},
          .run = [=](TensorSpan in) { return in[0].Split(sizes, dim); },
          .reference =
              [=](RefSpan in) {
                std::vector<RefTensor> parts;
                int64_t begin = 0;
                for (int64_t size : sizes) {
                  parts.push_back(Part(in[0], dim, begin, begin + size));
                  begin += size;
                }
                return parts;
              }};
}

// As queries, keys and values come out of one projection.
OpSample Thirds(const std::string& name, const Shape& shape) {
  const int64_t size = shape[-1] / 3;
  OpSample s = Split(name, {.shape = shape}, {size, size, size}, shape.ndim() - 1);
  s.run = [](TensorSpan in) { return in[0].Chunk(3, -1); };
  return s;
}

OpSample Expand(const std::string& name, const InputSpec& x, const Shape& to) {
  const int lead = to.ndim() - x.shape.ndim();
  return Sample(
      name, x, [=](const Tensor& t) { return t.Expand(to); }, to,
      [=, from = x.shape](const Shape& c) {
        Shape source = from;
        for (int d = 0; d < from.ndim(); ++d) source[d] = from[d] == 1 ? 0 : c[lead + d];
        return source;
      });
}

std::vector<OpSample> Samples() {
  const InputSpec odd{.shape = {3, 5, 4}};
  const InputSpec strided{.shape = {3, 5, 4}, .non_contiguous = true};
  OpSample large = Thirds("large_qkv", {4096, 2304});
  // Forward makes a view.
  large.benchmark = {.elements = 1, .backward_elements = 2.0 * 4096 * 2304};
  return {
      Reshape("empty", {.shape = {0, 3}}, {3, 0, 2}, {3, 0, 2}),
      Reshape("scalar", {.shape = {1, 1}}, {}, {}),
      Reshape("odd", odd, {5, 12}, {5, 12}),
      Reshape("inferred", odd, {-1, 6}, {10, 6}),
      Reshape("strided", strided, {60}, {60}),
      Contiguous("contiguous", odd),
      Contiguous("contiguous_strided", strided),
      Transpose("transpose", odd, 0, -1),
      Transpose("transpose_strided", strided, 0, 1),
      Transpose("transpose_same", odd, 1, 1),
      Permute("permute", odd, {2, 0, 1}),
      Permute("permute_copied", odd, {1, 2, 0}, true),
      Permute("permute_strided", strided, {1, 2, 0}),
      Permute("chunks", {.shape = {150, 300}}, {1, 0}, true),
      CopiedAtScale("heads", {4, 1024, 12, 64}, {0, 2, 1, 3}),
      CopiedAtScale("matrix", {2048, 2048}, {1, 0}),
      Slice("empty_slice", odd, 1, 4, 4),
      Slice("one", {.shape = {1}}, 0, 0, 1),
      Slice("whole", odd, 0, 0, 3),
      Slice("first", odd, 0, 1, 2),
      Slice("middle", odd, 1, 2, 4),
      Slice("last", odd, -1, 1, 2),
      Slice("from_the_end", odd, 1, -4, -1),
      Slice("slice_strided", strided, 1, 2, 5),
      Slice("slice_chunks", {.shape = {150, 300}}, 1, 20, 200),
      Overlapping(),
      Split("split", {.shape = {4, 9}}, {2, 0, 3, 4}, 1),
      Split("split_first", {.shape = {9, 4}}, {1, 8}, 0),
      Thirds("qkv", {2, 5, 12}),
      large,
      Expand("expand", {.shape = {5, 1, 3}}, {2, 5, 4, 3}),
      Expand("expand_scalar", {.shape = {}}, {7, 3}),
      Expand("expand_empty", {.shape = {1, 3}}, {0, 3}),
      Expand("expand_chunks", {.shape = {1, 3}}, {10000, 3}),
      Expand("expand_same", {.shape = {2, 1}}, {1, 2, 1}),
      Expand("expand_strided", {.shape = {5, 3}, .non_contiguous = true}, {300, 5, 3}),
      Sample(
          "squeeze", {.shape = {3, 1, 4}, .non_contiguous = true},
          [](const Tensor& t) { return t.Squeeze(-2); }, {3, 4},
          [](const Shape& c) {
            return Shape{c[0], 0, c[1]};
          }),
      Sample(
          "unsqueeze", strided, [](const Tensor& t) { return t.Unsqueeze(-1); }, {3, 5, 4, 1},
          [](const Shape& c) {
            return Shape{c[0], c[1], c[2]};
          }),
  };
}

std::vector<ErrorSample> Errors() {
  return {{"outside", [](Device d) { Zeros(d, 2, 3).Slice(1, 1, 4); },
           "Slice [1, 4) does not lie within dimension 1 of a tensor of shape [2, 3]"},
          {"no_such_dimension", [](Device d) { Zeros(d, 2, 3).Transpose(0, 2); },
           "Transpose: there is no dimension 2 in a tensor of shape [2, 3]"}};
}

// Views copy; only the gradient of Expand is a sum, in f32 or wider and rounded once.
const bool registered = RegisterOpCase({.name = "views",
                                        .samples = Samples,
                                        .errors = Errors,
                                        .tolerances = NoTolerance(),
                                        .gradient_tolerances = {{DType::kF32, {1e-7, 0, ""}},
                                                                {DType::kF16, {1e-3, 0, ""}},
                                                                {DType::kBF16, {8e-3, 0, ""}}}});

}  // namespace
}  // namespace lockstep
