#include <cmath>

#include "kernels/op_case/op_case.h"
#include "kernels/rotary_embedding/rotary_embedding.h"
#include "kernels/scale/scale.h"

namespace lockstep {
namespace {

struct Setting {
  int64_t head_size, rotated, first_position = 0;
  RotaryOptions options = {};
  bool in_place = false;
  bool positions = false;  // a second input: below first_position + T
};

// The frequency of a pair, from Llama 3's own description by wavelengths.
double Frequency(const Setting& s, int64_t pair) {
  const RotaryOptions& o = s.options;
  const double f = 1 / std::pow(o.theta, 2.0 * pair / s.head_size);
  if (o.scaling == RotaryScaling::kNone) return f;
  const double wavelength = 2 * M_PI / f, length = static_cast<double>(o.original_length);
  if (o.scaling == RotaryScaling::kLinear || wavelength > length / o.low) return f / o.factor;
  if (wavelength < length / o.high) return f;
  const double smooth = (length / wavelength - o.low) / (o.high - o.low);
  return (1 - smooth) * f / o.factor + smooth * f;
}

// Multiplication of complex numbers x[i] + x[i + D/2] i by e^(i angle).
std::vector<RefTensor> Reference(const Setting& s, RefSpan in) {
  const RefTensor& x = in[0];
  RefTensor y = x;
  const int64_t d = s.head_size, half = d / 2, length = x.shape[1];
  int64_t width = 1;
  for (int i = 2; i < x.shape.ndim(); ++i) width *= x.shape[i];
  for (size_t at = 0; at < x.data.size(); ++at) {
    const int64_t head = static_cast<int64_t>(at) % width / d, i = static_cast<int64_t>(at) % d;
    if (head >= s.rotated) continue;
    const int64_t token = static_cast<int64_t>(at) / width;
    const double position = s.positions ? in[1].data[static_cast<size_t>(token)]
                                        : static_cast<double>(s.first_position + token % length);
    const double angle = position * Frequency(s, i % half);
    const double other = i < half ? -x.data[at + half] : x.data[at - half];
    y.data[at] = x.data[at] * std::cos(angle) + other * std::sin(angle);
  }
  return {y};
}

OpSample Sample(const std::string& name, const Shape& shape, const Setting& s) {
  std::vector<InputSpec> inputs = {{.shape = shape, .low = -2, .high = 2}};
  if (s.positions) {
    inputs.push_back({.shape = {shape[0], shape[1]},
                      .low = 0,
                      .high = static_cast<double>(s.first_position + shape[1]),
                      .index = true});
  }
  return {.name = name,
          .inputs = inputs,
          .run =
              [=](TensorSpan in) {
                // Between two ops, nothing else holds either what is turned or its gradient.
                Tensor x = s.in_place ? ops::Scale(in[0], 1) : in[0];
                const DType wide = AccumulationDType(x.dtype());
                const Tensor table = ops::RotaryTable(s.first_position + shape[1] + 1, s.head_size,
                                                      s.options, wide, x.device());
                const Tensor y =
                    ops::RotaryEmbedding(std::move(x), table, s.rotated, s.first_position,
                                         s.positions ? in[1] : Tensor());
                return s.in_place ? ops::Scale(y, 1) : y;
              },
          .reference = [=](RefSpan in) { return Reference(s, in); }};
}

std::vector<OpSample> Samples() {
  // All three regimes of Llama 3's scaling within eight pairs.
  const RotaryOptions llama3{.theta = 50,
                             .scaling = RotaryScaling::kLlama3,
                             .factor = 8,
                             .low = 1,
                             .high = 4,
                             .original_length = 64};
  const RotaryOptions linear{.scaling = RotaryScaling::kLinear, .factor = 4};
  OpSample strided = Sample("strided", {3, 5, 2, 4}, {4, 2});
  strided.inputs[0].non_contiguous = true;
  OpSample strided_positions =
      Sample("strided_positions", {3, 5, 2, 4}, {.head_size = 4, .rotated = 1, .positions = true});
  for (InputSpec& input : strided_positions.inputs) input.non_contiguous = true;
  OpSample large = Sample("llama", {4, 512, 48, 64}, {64, 40});
  large.benchmark = {.flops = 4.0 * 512 * 40 * 64 * 3,
                     .elements = 4.0 * 512 * 48 * 64 * 2,
                     .backward_flops = 4.0 * 512 * 40 * 64 * 3,
                     .backward_elements = 4.0 * 512 * 48 * 64 * 2};
  return {Sample("empty", {0, 3, 8}, {4, 2}),
          Sample("no_positions", {2, 0, 2, 4}, {4, 2}),
          Sample("one", {1, 1, 1, 2}, {2, 1}),
          Sample("odd", {3, 7, 5, 6}, {6, 5}),
          Sample("joint_qkv", {2, 9, 6 * 10}, {10, 4}),
          Sample("in_place", {3, 7, 5, 6}, {.head_size = 6, .rotated = 3, .in_place = true}),
          Sample("joint_qkv_in_place", {2, 9, 6 * 16},
                 {.head_size = 16, .rotated = 4, .first_position = 2, .in_place = true}),
          Sample("nothing_turned_in_place", {2, 3, 2, 4},
                 {.head_size = 4, .rotated = 0, .in_place = true}),
          Sample("nothing_turned", {2, 3, 2, 4}, {4, 0}),
          Sample("from_a_position", {2, 4, 3, 8}, {8, 2, 1000}),
          Sample("another_theta", {2, 40, 1, 8}, {8, 1, 0, {.theta = 500000}}),
          Sample("linear_scaling", {1, 40, 1, 8}, {8, 1, 7, linear}),
          Sample("llama3_scaling", {1, 100, 1, 16}, {16, 1, 3, llama3}),
          Sample("chunks", {3, 211, 6 * 18}, {18, 5}),
          Sample("positions", {3, 7, 5, 6}, {.head_size = 6, .rotated = 5, .positions = true}),
          Sample("positions_in_place", {2, 9, 6 * 16},
                 {.head_size = 16,
                  .rotated = 4,
                  .first_position = 100,
                  .in_place = true,
                  .positions = true}),
          strided_positions,
          strided,
          large};
}

std::vector<ErrorSample> Errors() {
  const auto table = [](Device d, int64_t positions, int64_t size) {
    return ops::RotaryTable(positions, size, {}, DType::kF32, d);
  };
  const auto frequencies = [](const RotaryOptions& o) {
    return [=](Device) { RotaryFrequencies(4, o); };
  };
  return {
      {"integers",
       [=](Device d) { ops::RotaryEmbedding(Zeros(DType::kI32, d, 1, 2, 4), table(d, 2, 4), 1); },
       "rotary_embedding: x must be a floating [B, T, N * D] or [B, T, N, D], got i32[1, 2, 4]"},
      {"odd head", [=](Device d) { table(d, 2, 3); },
       "rotary_embedding turns pairs: the size of a head must be even, got 3"},
      {"table of another dtype",
       [=](Device d) {
         ops::RotaryEmbedding(Zeros(d, 1, 2, 4), ops::RotaryTable(2, 4, {}, DType::kF64, d), 1);
       },
       "rotary_embedding: the table must be f32[positions, D]"},
      {"table of another size",
       [=](Device d) { ops::RotaryEmbedding(Zeros(d, 1, 2, 1, 4), table(d, 2, 2), 1); },
       "rotary_embedding: x must be [B, T, N * 2] or [B, T, N, 2] for this table, got f32[1, 2, "
       "1, 4]"},
      {"too many heads",
       [=](Device d) { ops::RotaryEmbedding(Zeros(d, 1, 2, 8), table(d, 2, 4), 3); },
       "rotary_embedding: cannot turn 3 of 2 heads"},
      {"beyond the table",
       [=](Device d) { ops::RotaryEmbedding(Zeros(d, 1, 2, 4), table(d, 5, 4), 1, 4); },
       "rotary_embedding: positions 4 to 6 do not fit a table of 5"},
      {"positions of another dtype",
       [=](Device d) {
         ops::RotaryEmbedding(Zeros(d, 1, 2, 4), table(d, 5, 4), 1, 0, Zeros(DType::kI64, d, 1, 2));
       },
       "rotary_embedding: positions must be i32[1, 2], one for each token, on "},
      {"a position beyond the table",
       [=](Device) {
         ops::RotaryEmbedding(Zeros(kCpu, 1, 2, 4), table(kCpu, 5, 4), 1, 0,
                              Tensor::FromVector<int32_t>({4, 5}, {1, 2}));
       },
       "rotary_embedding: the position 5 at [0, 1] is not in [0, 5), the positions of the table"},
      {"a table of nothing",
       [=](Device d) {
         ops::RotaryEmbedding(Zeros(d, 1, 2, 4), Zeros(d, 0, 4), 1, 0, Zeros(DType::kI32, d, 1, 2));
       },
       "rotary_embedding: the table has no positions"},
      {"before the table",
       [=](Device d) { ops::RotaryEmbedding(Zeros(d, 1, 2, 4), table(d, 5, 4), 1, -1); },
       "rotary_embedding: positions -1 to 1 do not fit a table of 5"},
      {"theta", frequencies({.theta = 0}), "rotary_embedding: theta must be positive, got 0"},
      {"factor", frequencies({.scaling = RotaryScaling::kLinear, .factor = 0}),
       "rotary_embedding: the scaling factor must be positive, got 0"},
      {"low and high", frequencies({.scaling = RotaryScaling::kLlama3, .low = 4, .high = 4}),
       "rotary_embedding: the scaling's low and high must be positive and low less than high, got "
       "4 and 4"},
  };
}

const bool registered =
    RegisterOpCase({.name = "rotary_embedding", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
