#include "kernels/concat/concat.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

RefTensor Reference(RefSpan in, int dim) {
  Shape shape = in[0].shape;
  int64_t outer = 1, inner = 1, joined = 0;
  for (int i = 0; i < dim; ++i) outer *= shape[i];
  for (int i = dim + 1; i < shape.ndim(); ++i) inner *= shape[i];
  for (const RefTensor& x : in) joined += x.shape[dim];
  shape[dim] = joined;
  RefTensor y(shape);
  int64_t begin = 0;
  for (const RefTensor& x : in) {
    const int64_t n = x.shape[dim] * inner;
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < n; ++i) y.data[o * joined * inner + begin + i] = x.data[o * n + i];
    }
    begin += n;
  }
  return y;
}

OpSample Sample(const std::string& name, const std::vector<Shape>& shapes, int dim,
                bool non_contiguous = false) {
  OpSample s;
  s.name = name;
  for (const Shape& shape : shapes) {
    s.inputs.push_back({.shape = shape, .non_contiguous = non_contiguous});
  }
  s.run = [dim](TensorSpan in) {
    return ops::Concat(std::vector<Tensor>(in.begin(), in.end()), dim);
  };
  const int at = dim < 0 ? dim + shapes[0].ndim() : dim;
  s.reference = [at](RefSpan in) { return Reference(in, at); };
  return s;
}

OpSample Stack(const std::string& name, size_t n, const Shape& shape, int dim,
               bool non_contiguous = false) {
  OpSample s = Sample(StrCat("stack_", name), std::vector<Shape>(n, shape), 0, non_contiguous);
  s.run = [dim](TensorSpan in) {
    return ops::Stack(std::vector<Tensor>(in.begin(), in.end()), dim);
  };
  const int at = dim < 0 ? dim + shape.ndim() + 1 : dim;
  s.reference = [at](RefSpan in) {
    std::vector<RefTensor> slices;
    for (const RefTensor& x : in) {
      Shape slice;
      for (int d = 0; d <= x.shape.ndim(); ++d) {
        if (d == at) slice.push_back(1);
        if (d < x.shape.ndim()) slice.push_back(x.shape[d]);
      }
      slices.emplace_back(slice).data = x.data;
    }
    return Reference(slices, at);
  };
  return s;
}

OpSample Repeat(const std::string& name, const Shape& shape, const std::vector<int64_t>& counts) {
  OpSample s = Sample(StrCat("repeat_", name), {shape}, 0);
  s.run = [counts](TensorSpan in) { return ops::Repeat(in[0], counts); };
  s.reference = [counts](RefSpan in) {
    RefTensor y = in[0];
    for (int d = 0; d < y.shape.ndim(); ++d) {
      y = Reference(std::vector<RefTensor>(static_cast<size_t>(counts[d]), y), d);
    }
    return y;
  };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample same = Sample("same_twice", {{3, 4}, {3, 4}}, 1);
  same.inputs.pop_back();
  same.run = [](TensorSpan in) { return ops::Concat({in[0], in[0]}, 1); };
  same.reference = [](RefSpan in) { return Reference(std::vector{in[0], in[0]}, 1); };
  OpSample large = Sample("large", {{4096, 768}, {4096, 768}, {4096, 768}}, 1);
  large.benchmark = {.elements = 2.0 * 4096 * 2304, .backward_elements = 2.0 * 4096 * 2304};
  return {Repeat("rows", {2, 3}, {3, 1}),
          Repeat("both", {2, 3, 2}, {1, 4, 2}),
          Sample("empty", {{0, 3}, {0, 3}}, 1),
          Sample("with_empty", {{2, 3}, {0, 3}, {4, 3}}, 0),
          Sample("single", {{2, 3}}, 0),
          Sample("one", {{1}, {1}}, 0),
          Sample("first", {{2, 5}, {3, 5}}, 0),
          Sample("middle", {{2, 1, 5}, {2, 4, 5}, {2, 2, 5}}, 1),
          Sample("last", {{3, 2, 5}, {3, 2, 1}}, -1),
          Sample("transposed", {{5, 3}, {5, 4}}, 1, true),
          Sample("chunks", {{150, 130}, {150, 170}}, 1),
          Stack("empty", 2, {0, 3}, 1),
          Stack("scalars", 3, {}, 0),
          Stack("single", 1, {2, 3}, 1),
          Stack("first", 3, {2, 5}, 0),
          Stack("middle", 2, {2, 5}, 1),
          Stack("last", 4, {2, 5}, -1),
          Stack("transposed", 2, {5, 3}, 1, true),
          same,
          large};
}

std::vector<ErrorSample> Errors() {
  return {{"repeat_counts", [](Device d) { ops::Repeat(Zeros(d, 2, 3), {2}); },
           "needs a count for each dimension, got 1"},
          {"repeat_nothing", [](Device d) { ops::Repeat(Zeros(d, 2), {0}); },
           "repeat: the count of dimension 0 must be at least 1, got 0"},
          {"nothing", [](Device) { ops::Concat({}, 0); }, "concat: no tensors given"},
          {"shapes",
           [](Device d) {
             ops::Concat({Zeros(d, 2, 3), Zeros(d, 2, 4)}, 0);
           },
           "concat: tensor 1 (f32[2, 4] on cpu) does not fit the first (f32[2, 3] on cpu)"},
          {"dtypes",
           [](Device d) {
             ops::Concat({Zeros(d, 2), Zeros(DType::kF64, d, 2)}, 0);
           },
           "does not fit the first"},
          {"no_such_dimension", [](Device d) { ops::Concat({Zeros(d, 2)}, 1); },
           "concat: there is no dimension 1"},
          {"stack_nothing", [](Device) { ops::Stack({}); }, "stack: no tensors given"},
          {"stack_shapes",
           [](Device d) {
             ops::Stack({Zeros(d, 2), Zeros(d, 3)});
           },
           "stack: tensor 1 (f32[3] on cpu) must have the shape, dtype and device of the first "
           "(f32[2] on cpu)"},
          {"stack_no_such_dimension", [](Device d) { ops::Stack({Zeros(d, 2)}, 2); },
           "stack: dimension 2 cannot be added to tensors of shape [2]"}};
}

// Copies; only the gradient of Repeat is a sum, in f32 or wider and rounded once.
const bool registered = RegisterOpCase({.name = "concat",
                                        .samples = Samples,
                                        .errors = Errors,
                                        .tolerances = NoTolerance(),
                                        .gradient_tolerances = {{DType::kF32, {1e-7, 0, ""}},
                                                                {DType::kF16, {1e-3, 0, ""}},
                                                                {DType::kBF16, {8e-3, 0, ""}}}});

}  // namespace
}  // namespace lockstep
