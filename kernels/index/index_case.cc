#include "kernels/index/index.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// [outer, size of dim, inner].
struct Blocks {
  int64_t outer = 1, size, inner = 1;

  Blocks(const Shape& shape, int dim) : size(shape[dim]) {
    for (int i = 0; i < dim; ++i) outer *= shape[i];
    for (int i = dim + 1; i < shape.ndim(); ++i) inner *= shape[i];
  }
  size_t At(int64_t o, int64_t j, int64_t i) const {
    return static_cast<size_t>((o * size + j) * inner + i);
  }
};

// Calls f(where in x, where in the index).
template <class F>
void ForEach(const RefTensor& x, int dim, const RefTensor& index, const F& f) {
  const Blocks from(x.shape, dim), by(index.shape, dim);
  for (int64_t o = 0; o < by.outer; ++o) {
    for (int64_t j = 0; j < by.size; ++j) {
      for (int64_t i = 0; i < by.inner; ++i) {
        const size_t at = by.At(o, j, i);
        f(from.At(o, static_cast<int64_t>(index.data[at]), i), at);
      }
    }
  }
}

std::vector<RefTensor> SelectReference(RefSpan in, int dim) {
  const RefTensor &x = in[0], &index = in[1];
  Shape shape = x.shape;
  shape[dim] = index.shape[0];
  RefTensor y(shape);
  const Blocks from(x.shape, dim), to(shape, dim);
  for (int64_t o = 0; o < to.outer; ++o) {
    for (int64_t j = 0; j < to.size; ++j) {
      for (int64_t i = 0; i < to.inner; ++i) {
        y.data[to.At(o, j, i)] = x.data[from.At(o, static_cast<int64_t>(index.data[j]), i)];
      }
    }
  }
  return {y};
}

InputSpec IndexInto(const Shape& shape, int64_t size) {
  return {.shape = shape, .low = 0, .high = static_cast<double>(size), .index = true};
}

OpSample Select(const std::string& name, const Shape& x, int dim, int64_t n) {
  return {.name = StrCat("select_", name),
          .inputs = {{.shape = x}, IndexInto({n}, x[dim])},
          .run = [dim](TensorSpan in) { return ops::IndexSelect(in[0], dim, in[1]); },
          .reference = [dim](RefSpan in) { return SelectReference(in, dim); }};
}

// The index has n elements in `dim`.
OpSample Gather(const std::string& name, const Shape& x, int dim, int64_t n) {
  Shape shape = x;
  shape[dim] = n;
  return {.name = StrCat("gather_", name),
          .inputs = {{.shape = x}, IndexInto(shape, x[dim])},
          .run = [dim](TensorSpan in) { return ops::Gather(in[0], dim, in[1]); },
          .reference =
              [dim](RefSpan in) {
                RefTensor y(in[1].shape);
                ForEach(in[0], dim, in[1],
                        [&](size_t from, size_t at) { y.data[at] = in[0].data[from]; });
                return y;
              }};
}

OpSample Scatter(bool add, const std::string& name, const Shape& x, int dim, int64_t n) {
  Shape shape = x;
  shape[dim] = n;
  return {.name = StrCat(add ? "scatter_add_" : "scatter_", name),
          .inputs = {{.shape = x}, IndexInto(shape, x[dim]), {.shape = shape}},
          .run =
              [=](TensorSpan in) {
                return add ? ops::ScatterAdd(in[0], dim, in[1], in[2])
                           : ops::Scatter(in[0], dim, in[1], in[2]);
              },
          .reference =
              [=](RefSpan in) {
                RefTensor y = in[0];
                ForEach(in[0], dim, in[1], [&](size_t to, size_t at) {
                  y.data[to] = add ? y.data[to] + in[2].data[at] : in[2].data[at];
                });
                return y;
              }};
}

OpSample Strided(OpSample s) {
  for (InputSpec& input : s.inputs) input.non_contiguous = input.shape.ndim() >= 2;
  return s;
}

OpSample Large(OpSample s, double elements, double backward) {
  s.benchmark = {.elements = elements, .backward_elements = backward};
  return s;
}

// Integers and bools are moved as well.
OpSample Integers() {
  OpSample s = Gather("integers", {3, 5}, 1, 4);
  s.inputs[0] = IndexInto({3, 5}, 100);
  return s;
}
OpSample Bools() {
  OpSample s = Scatter(false, "bools", {3, 5}, 1, 4);
  s.inputs[0] = IndexInto({3, 5}, 2);
  s.inputs[2] = IndexInto({3, 4}, 2);
  s.run = [](TensorSpan in) {
    return ops::Scatter(in[0].To(DType::kBool), 1, in[1], in[2].To(DType::kBool));
  };
  return s;
}
OpSample I64() {
  OpSample s = Select("i64", {4, 3}, 0, 6);
  s.run = [](TensorSpan in) { return ops::IndexSelect(in[0], -2, in[1].To(DType::kI64)); };
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> samples = {
      Select("empty", {3, 4}, 1, 0),
      Select("empty_slices", {3, 4, 0}, 1, 2),
      Select("one", {1}, 0, 1),
      Select("rows", {7, 13}, 0, 11),
      Select("wide_rows", {5, 16}, 0, 9),
      Select("columns", {5, 7}, 1, 9),
      Select("middle", {2, 6, 4}, 1, 3),
      Select("repeated", {3, 5}, 0, 70),
      Select("chunks", {40, 700}, 0, 60),
      Strided(Select("transposed", {5, 6}, 0, 4)),
      Integers(),
      Bools(),
      I64(),
      Large(Select("large", {50257, 768}, 0, 8192), 2.0 * 8192 * 768, 8192.0 * 768 + 50257.0 * 768),
      Large(Gather("large", {8192, 50257}, 1, 1), 2 * 8192, 8192.0 * 50257)};
  const auto add = [&](const std::string& name, const Shape& x, int dim, int64_t n) {
    samples.push_back(Gather(name, x, dim, n));
    samples.push_back(Scatter(false, name, x, dim, n));
    samples.push_back(Scatter(true, name, x, dim, n));
  };
  add("empty", {3, 4}, 1, 0);
  add("empty_columns", {0, 4}, 1, 2);
  add("one", {1}, 0, 1);
  add("single_of_each", {6, 9}, 1, 1);
  add("vector", {5}, 0, 12);
  add("rows", {6, 7}, 1, 5);
  add("columns", {6, 7}, 0, 15);
  add("middle", {2, 5, 3}, 1, 4);
  // More columns, and more places, than a byte counts.
  add("many", {300, 4, 3}, 1, 6);
  add("long", {2, 700}, 1, 3000);
  for (OpSample s : {Gather("transposed", {5, 6}, 1, 4), Scatter(false, "transposed", {5, 6}, 0, 4),
                     Scatter(true, "transposed", {5, 6}, 0, 9)}) {
    samples.push_back(Strided(s));
  }
  return samples;
}

std::vector<ErrorSample> Errors() {
  constexpr DType kI64 = DType::kI64;
  return {
      // An index is checked only on the CPU: other devices could not report to the host.
      {"too_large",
       [=](Device) {
         ops::Gather(Zeros(kCpu, 2, 3), 1, Tensor::FromVector<int64_t>({0, 2, 1, 3}, {2, 2}));
       },
       "gather: the index 3 at [1, 1] is not in [0, 3), the dimension of x that it picks from"},
      {"negative",
       [=](Device) {
         ops::IndexSelect(Zeros(kCpu, 2, 3), 0, Tensor::FromVector<int32_t>({0, -1}, {2}));
       },
       "index_select: the index -1 at [1] is not in [0, 2)"},
      {"floating_index", [=](Device d) { ops::IndexSelect(Zeros(d, 2, 3), 0, Zeros(d, 2)); },
       "index_select: the index must be i32 or i64, on cpu as x is, got f32[2]"},
      {"index_of_two_dimensions",
       [=](Device d) { ops::IndexSelect(Zeros(d, 2, 3), 0, Zeros(kI64, d, 2, 1)); },
       "index_select: the index must have one dimension, got i64[2, 1]"},
      {"no_such_dimension", [=](Device d) { ops::Gather(Zeros(d, 2, 3), 2, Zeros(kI64, d, 2, 3)); },
       "gather: there is no dimension 2 in a tensor of shape [2, 3]"},
      {"shape_of_index", [=](Device d) { ops::Gather(Zeros(d, 2, 3), 1, Zeros(kI64, d, 1, 3)); },
       "gather: the index must have the shape of x, [2, 3], except in dimension 1, got i64[1, 3]"},
      {"shape_of_source",
       [=](Device d) { ops::Scatter(Zeros(d, 2, 3), 1, Zeros(kI64, d, 2, 2), Zeros(d, 2, 3)); },
       "scatter: the source must have the shape of the index, [2, 2], and the dtype and device"},
      {"dtype_of_source",
       [=](Device d) { ops::Scatter(Zeros(d, 2), 0, Zeros(kI64, d, 1), Zeros(DType::kF64, d, 1)); },
       "scatter: the source must have the shape of the index, [1], and the dtype and device of x"},
      {"sums_of_integers",
       [=](Device d) {
         ops::ScatterAdd(Zeros(kI64, d, 2), 0, Zeros(kI64, d, 1), Zeros(kI64, d, 1));
       },
       "scatter_add: x must be a floating tensor, got i64[2]"},
      {"undefined", [=](Device d) { ops::Gather(Tensor(), 0, Zeros(kI64, d, 1)); },
       "gather: x is undefined"}};
}

const bool registered = RegisterOpCase({.name = "index", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
