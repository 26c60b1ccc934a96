#include "kernels/embedding/embedding.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

std::vector<RefTensor> Reference(RefSpan in) {
  const RefTensor &ids = in[0], &weight = in[1];
  const int64_t c = weight.shape[1];
  Shape shape = ids.shape;
  shape.push_back(c);
  RefTensor y(shape);
  for (size_t i = 0; i < ids.data.size(); ++i) {
    for (int64_t k = 0; k < c; ++k) {
      y.data[i * c + k] = weight.data[static_cast<int64_t>(ids.data[i]) * c + k];
    }
  }
  return {y};
}

OpSample Sample(const std::string& name, const Shape& ids, int64_t v, int64_t c) {
  return {.name = name,
          .inputs = {{.shape = ids, .low = 0, .high = static_cast<double>(v), .index = true},
                     {.shape = {v, c}}},
          .run = [](TensorSpan in) { return ops::Embedding(in[0], in[1]); },
          .reference = Reference};
}

std::vector<OpSample> Samples() {
  OpSample strided = Sample("strided", {4, 6}, 9, 5);
  for (InputSpec& input : strided.inputs) input.non_contiguous = true;
  OpSample i64 = Sample("i64", {3, 4}, 11, 7);
  i64.run = [](TensorSpan in) { return ops::Embedding(in[0].To(DType::kI64), in[1]); };
  // Two lookups in one table: the second gradient is added to the first.
  OpSample shared = Sample("shared table", {5}, 6, 3);
  shared.run = [](TensorSpan in) {
    return std::vector{ops::Embedding(in[0], in[1]), ops::Embedding(in[0], in[1])};
  };
  shared.reference = [](RefSpan in) { return std::vector{Reference(in)[0], Reference(in)[0]}; };
  OpSample large = Sample("gpt2", {8, 1024}, 50304, 768);
  large.benchmark = {.flops = 1, .elements = 8.0 * 1024 * 768 * 2};
  OpSample three_bytes = Sample("ids of three bytes", {2, 9}, 65600, 2);
  three_bytes.finite_differences = false;  // slow, and the other samples have them
  return {Sample("empty", {0, 3}, 5, 4),
          Sample("one", {1}, 1, 1),
          Sample("scalar id", {}, 4, 3),
          Sample("repeated", {3, 17}, 4, 13),
          Sample("sparse", {2, 3}, 40, 8),
          Sample("frequent", {7, 41}, 2, 5),
          Sample("several channel blocks", {2, 5}, 3, 517),
          Sample("several tiles of ids", {3, 701}, 300, 8),
          three_bytes,
          strided,
          i64,
          shared,
          large};
}

std::vector<ErrorSample> Errors() {
  return {
      // Ids are checked only on the CPU: other devices could not report to the host.
      {"id too large",
       [](Device) {
         ops::Embedding(Tensor::FromVector<int32_t>({0, 1, 2, 0, 65, 1}, {2, 3}),
                        Zeros(kCpu, 65, 4));
       },
       "embedding: the id 65 at [1, 1] is not in [0, 65)"},
      {"negative id",
       [](Device) { ops::Embedding(Tensor::FromVector<int64_t>({-1}, {1}), Zeros(kCpu, 3, 4)); },
       "embedding: the id -1 at [0] is not in [0, 3)"},
      {"floating ids", [](Device d) { ops::Embedding(Zeros(d, 2), Zeros(d, 3, 4)); },
       "embedding: ids must be i32 or i64, got f32[2]"},
      {"weight of three dimensions",
       [](Device d) { ops::Embedding(Zeros(DType::kI32, d, 2), Zeros(d, 3, 4, 5)); },
       "embedding: weight must be a floating [V, C], got f32[3, 4, 5]"}};
}

const bool registered = RegisterOpCase({.name = "embedding", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
