#include "kernels/op_case/op_case.h"
#include "kernels/token_position_embedding/token_position_embedding.h"

namespace lockstep {
namespace {

OpSample Sample(const std::string& name, const Shape& ids, int64_t v, int64_t p, int64_t c,
                int64_t first = 0) {
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = ids, .low = 0, .high = static_cast<double>(v), .index = true},
              {.shape = {v, c}},
              {.shape = {p, c}}};
  s.run = [first](std::span<const Tensor> in) {
    return std::vector{ops::TokenPositionEmbedding(in[0], in[1], in[2], first)};
  };
  s.reference = [first](std::span<const RefTensor> in) {
    const RefTensor &id = in[0], &wte = in[1], &wpe = in[2];
    const int64_t t = id.shape[1], channels = wte.shape[1];
    RefTensor y({id.shape[0], t, channels});
    for (int64_t i = 0; i < id.shape.numel(); ++i) {
      for (int64_t k = 0; k < channels; ++k) {
        y.data[i * channels + k] = wte.data[static_cast<int64_t>(id.data[i]) * channels + k] +
                                   wpe.data[(first + i % t) * channels + k];
      }
    }
    return std::vector{y};
  };
  return s;
}

Tensor Ids(Device d, const Shape& shape) { return Tensor::Zeros(shape, DType::kI32, d); }
Tensor Table(Device d, int64_t rows, int64_t c) { return Tensor::Zeros({rows, c}, DType::kF32, d); }

OpCase Make() {
  OpCase c;
  c.name = "token_position_embedding";
  c.dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  c.samples = [] {
    OpSample strided = Sample("strided", {3, 5}, 9, 8, 5);
    for (InputSpec& input : strided.inputs) input.non_contiguous = true;
    OpSample large = Sample("gpt2", {8, 1024}, 50304, 1024, 768);
    large.flops = 8.0 * 1024 * 768;
    large.elements_moved = 8.0 * 1024 * 768 * 2 + 1024.0 * 768;
    large.benchmark_only = true;
    return std::vector<OpSample>{Sample("empty batch", {0, 3}, 5, 4, 2),
                                 Sample("one", {1, 1}, 1, 1, 1),
                                 Sample("odd", {3, 7}, 5, 11, 13),
                                 Sample("from position 4", {2, 3}, 5, 9, 6, 4),
                                 Sample("all positions", {2, 9}, 5, 9, 4),
                                 Sample("several channel blocks", {2, 3}, 4, 3, 517),
                                 Sample("whole packs", {3, 5}, 7, 6, 24),
                                 strided,
                                 large};
  };
  c.errors = [] {
    return std::vector<ErrorSample>{
        {"too long",
         [](Device d) {
           ops::TokenPositionEmbedding(Ids(d, {1, 9}), Table(d, 5, 4), Table(d, 8, 4));
         },
         "a sequence of 9 tokens from position 0 does not fit the 8 positions of wpe"},
        {"too far",
         [](Device d) {
           ops::TokenPositionEmbedding(Ids(d, {1, 3}), Table(d, 5, 4), Table(d, 8, 4), 6);
         },
         "a sequence of 3 tokens from position 6 does not fit the 8 positions of wpe"},
        {"widths differ",
         [](Device d) {
           ops::TokenPositionEmbedding(Ids(d, {1, 3}), Table(d, 5, 4), Table(d, 8, 6));
         },
         "wpe must be a f32 [P, 4] as wte is f32[5, 4]"},
        // Ids are checked only on the CPU: other devices could not report to the host.
        {"id too large",
         [](Device) {
           ops::TokenPositionEmbedding(Tensor::FromVector<int32_t>({0, 1, 5, 0}, {2, 2}),
                                       Table(kCpu, 5, 4), Table(kCpu, 8, 4));
         },
         "token_position_embedding: the id 5 at [1, 0] is not in [0, 5)"}};
  };
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
