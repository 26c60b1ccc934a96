#include "kernels/op_case/op_case.h"
#include "kernels/token_position_embedding/token_position_embedding.h"

namespace lockstep {
namespace {

// Without `positions`, from position `first` on.
OpSample Sample(const std::string& name, const Shape& ids, int64_t v, int64_t p, int64_t c,
                int64_t first = 0, bool positions = false) {
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = ids, .low = 0, .high = static_cast<double>(v), .index = true},
              {.shape = {v, c}},
              {.shape = {p, c}}};
  if (positions) {
    s.inputs.push_back({.shape = ids, .low = 0, .high = static_cast<double>(p), .index = true});
  }
  s.run = [first](TensorSpan in) {
    return ops::TokenPositionEmbedding(in[0], in[1], in[2], first,
                                       in.size() > 3 ? in[3] : Tensor());
  };
  s.reference = [first](RefSpan in) {
    const RefTensor &id = in[0], &wte = in[1], &wpe = in[2];
    const int64_t t = id.shape[1], channels = wte.shape[1];
    RefTensor y({id.shape[0], t, channels});
    for (int64_t i = 0; i < id.shape.numel(); ++i) {
      const int64_t place = in.size() > 3 ? static_cast<int64_t>(in[3].data[i]) : first + i % t;
      for (int64_t k = 0; k < channels; ++k) {
        y.data[i * channels + k] = wte.data[static_cast<int64_t>(id.data[i]) * channels + k] +
                                   wpe.data[place * channels + k];
      }
    }
    return y;
  };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample strided = Sample("strided", {3, 5}, 9, 8, 5);
  for (InputSpec& input : strided.inputs) input.non_contiguous = true;
  OpSample positions = Sample("strided positions", {3, 5}, 9, 8, 5, 0, true);
  for (InputSpec& input : positions.inputs) input.non_contiguous = true;
  OpSample large = Sample("gpt2", {8, 1024}, 50304, 1024, 768);
  large.benchmark = {.flops = 8.0 * 1024 * 768, .elements = 8.0 * 1024 * 768 * 2 + 1024.0 * 768};
  return {Sample("empty batch", {0, 3}, 5, 4, 2),
          Sample("one", {1, 1}, 1, 1, 1),
          Sample("odd", {3, 7}, 5, 11, 13),
          Sample("from position 4", {2, 3}, 5, 9, 6, 4),
          Sample("all positions", {2, 9}, 5, 9, 4),
          Sample("several channel blocks", {2, 3}, 4, 3, 517),
          Sample("whole packs", {3, 5}, 7, 6, 24),
          Sample("positions", {3, 7}, 5, 4, 13, 0, true),
          Sample("positions, whole packs", {2, 9}, 5, 30, 24, 0, true),
          Sample("one position, empty batch", {0, 3}, 5, 1, 2, 0, true),
          positions,
          strided,
          large};
}

std::vector<ErrorSample> Errors() {
  return {
      {"too long",
       [](Device d) {
         ops::TokenPositionEmbedding(Zeros(DType::kI32, d, 1, 9), Zeros(d, 5, 4), Zeros(d, 8, 4));
       },
       "a sequence of 9 tokens from position 0 does not fit the 8 positions of wpe"},
      {"too far",
       [](Device d) {
         ops::TokenPositionEmbedding(Zeros(DType::kI32, d, 1, 3), Zeros(d, 5, 4), Zeros(d, 8, 4),
                                     6);
       },
       "a sequence of 3 tokens from position 6 does not fit the 8 positions of wpe"},
      {"positions of another shape",
       [](Device d) {
         ops::TokenPositionEmbedding(Zeros(DType::kI32, d, 2, 3), Zeros(d, 5, 4), Zeros(d, 8, 4), 0,
                                     Zeros(DType::kI32, d, 3, 2));
       },
       "token_position_embedding: positions must be i32[2, 3], one for each token, on "},
      {"position too large",
       [](Device) {
         ops::TokenPositionEmbedding(Zeros(DType::kI32, kCpu, 2, 2), Zeros(kCpu, 5, 4),
                                     Zeros(kCpu, 8, 4), 0,
                                     Tensor::FromVector<int32_t>({0, 1, 7, 8}, {2, 2}));
       },
       "token_position_embedding: the position 8 at [1, 1] is not in [0, 8), the positions of "
       "the table"},
      {"widths differ",
       [](Device d) {
         ops::TokenPositionEmbedding(Zeros(DType::kI32, d, 1, 3), Zeros(d, 5, 4), Zeros(d, 8, 6));
       },
       "wpe must be a f32 [P, 4] as wte is f32[5, 4]"},
      // Ids are checked only on the CPU: other devices could not report to the host.
      {"id too large",
       [](Device) {
         ops::TokenPositionEmbedding(Tensor::FromVector<int32_t>({0, 1, 5, 0}, {2, 2}),
                                     Zeros(kCpu, 5, 4), Zeros(kCpu, 8, 4));
       },
       "token_position_embedding: the id 5 at [1, 0] is not in [0, 5)"}};
}

const bool registered =
    RegisterOpCase({.name = "token_position_embedding", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
