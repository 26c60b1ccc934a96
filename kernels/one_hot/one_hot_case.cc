#include "kernels/one_hot/one_hot.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

OpSample Sample(const std::string& name, const Shape& shape, int64_t classes, DType index,
                DType dtype, bool non_contiguous = false) {
  return {.name = name,
          .inputs = {{.shape = shape,
                      .low = 0,
                      .high = static_cast<double>(classes),
                      .index = true,
                      .non_contiguous = non_contiguous}},
          .run = [=](TensorSpan in) { return ops::OneHot(in[0].To(index), classes, dtype); },
          .reference =
              [=](RefSpan in) {
                Shape out = shape;
                out.push_back(classes);
                RefTensor y(out);
                for (size_t i = 0; i < in[0].data.size(); ++i) {
                  y.data[i * classes + static_cast<size_t>(in[0].data[i])] = 1;
                }
                return y;
              }};
}

std::vector<OpSample> Samples() {
  OpSample large = Sample("large", {8192}, 1000, DType::kI32, DType::kF32);
  large.benchmark = {.elements = 8192 * 1001.0};
  return {Sample("empty", {0, 3}, 4, DType::kI32, DType::kF32),
          Sample("one", {}, 1, DType::kI64, DType::kF32),
          Sample("odd", {3, 5, 7}, 11, DType::kI32, DType::kF32),
          Sample("wide", {13}, 1003, DType::kI64, DType::kBF16),
          Sample("integers", {13}, 5, DType::kI64, DType::kI64),
          Sample("booleans", {13}, 5, DType::kI32, DType::kBool),
          Sample("chunks", {33001}, 3, DType::kI32, DType::kF16),
          Sample("transposed", {5, 9}, 4, DType::kI32, DType::kF32, true),
          large};
}

std::vector<ErrorSample> Errors() {
  return {{"floats", [](Device d) { ops::OneHot(Zeros(d, 2), 3); },
           "one_hot: the index must be i32 or i64, got f32[2] on cpu"},
          {"no_classes", [](Device d) { ops::OneHot(Zeros(DType::kI32, d, 2), 0); },
           "one_hot: the number of classes must be positive, got 0"},
          // Only the CPU can report it to the host.
          {"too_large", [](Device) { ops::OneHot(Tensor::Full({2}, 3, DType::kI64), 3); },
           "one_hot: the index 3 at position 0 is outside of the 3 classes"},
          {"negative", [](Device) { ops::OneHot(Tensor::Full({2}, -1, DType::kI32), 3); },
           "one_hot: the index -1 at position 0"}};
}

// The dtype of the results is given.
const bool registered = RegisterOpCase({.name = "one_hot",
                                        .dtypes = {DType::kF32},
                                        .samples = Samples,
                                        .errors = Errors,
                                        .tolerances = {{DType::kF32, {}}},
                                        .differentiable = false});

}  // namespace
}  // namespace lockstep
