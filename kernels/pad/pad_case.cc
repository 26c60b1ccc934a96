#include "kernels/op_case/op_case.h"
#include "kernels/pad/pad.h"

namespace lockstep {
namespace {

using Margins = std::vector<std::pair<int64_t, int64_t>>;

RefTensor Reference(const RefTensor& x, const Margins& margins, double value) {
  Shape shape = x.shape;
  for (int d = 0; d < shape.ndim(); ++d) shape[d] += margins[d].first + margins[d].second;
  RefTensor y(shape);
  for (size_t i = 0; i < y.data.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), from = 0, step = 1;
    bool inside = true;
    for (int d = shape.ndim() - 1; d >= 0; --d) {
      const int64_t at = rest % shape[d] - margins[d].first;
      inside = inside && at >= 0 && at < x.shape[d];
      from += at * step;
      step *= x.shape[d];
      rest /= shape[d];
    }
    y.data[i] = inside ? x.data[from] : value;
  }
  return y;
}

// The value is exact in every dtype.
OpSample Sample(const std::string& name, const InputSpec& x, const Margins& margins,
                double value = -2.5) {
  return {.name = name,
          .inputs = {x},
          .run = [=](TensorSpan in) { return ops::Pad(in[0], margins, value); },
          .reference = [=](RefSpan in) { return Reference(in[0], margins, value); }};
}

std::vector<OpSample> Samples() {
  OpSample large = Sample("large", {.shape = {64, 64, 56, 56}}, {{}, {}, {1, 1}, {1, 1}});
  large.benchmark = {.elements = 64.0 * 64 * (56 * 56 + 58 * 58),
                     .backward_elements = 2.0 * 64 * 64 * 56 * 56};
  return {Sample("empty", {.shape = {0, 3}}, {{0, 0}, {1, 1}}),
          Sample("around_nothing", {.shape = {0, 3}}, {{1, 1}, {0, 0}}),
          Sample("scalar", {.shape = {}}, {}),
          Sample("one", {.shape = {1}}, {{1, 2}}),
          Sample("no_margin", {.shape = {3, 5}}, {{0, 0}, {0, 0}}),
          Sample("zeros", {.shape = {3, 5}}, {{0, 1}, {2, 0}}, 0),
          Sample("all_sides", {.shape = {2, 3, 5}}, {{1, 0}, {2, 3}, {0, 4}}),
          Sample("transposed", {.shape = {5, 6}, .non_contiguous = true}, {{1, 0}, {0, 2}}),
          Sample("i32", {.shape = {2, 3}, .low = 0, .high = 9, .index = true}, {{0, 1}, {1, 0}}, 7),
          Sample("chunks", {.shape = {150, 130}}, {{3, 1}, {2, 5}}),
          large};
}

std::vector<ErrorSample> Errors() {
  return {
      {"too_few",
       [](Device d) {
         ops::Pad(Zeros(d, 2, 3), {{1, 1}});
       },
       "pad: a tensor of shape [2, 3] needs 2 pairs {before, after}, one for each dimension, got "
       "1"},
      {"value",
       [](Device d) {
         ops::Pad(Zeros(DType::kU8, d, 2), {{0, 1}}, -1);
       },
       "pad: a tensor of u8 cannot have the value -1"},
      {"negative",
       [](Device d) {
         ops::Pad(Zeros(d, 2, 3), {{0, 0}, {-1, 0}});
       },
       "pad: dimension 1 has the margins {-1, 0}: they must not be negative"},
      {"overflow",
       [](Device d) {
         ops::Pad(Zeros(d, 2), {{0, INT64_MAX}});
       },
       "pad: dimension 0 with the margins {0, 9223372036854775807} does not fit into 63 bits"},
      {"undefined", [](Device) { ops::Pad(Tensor(), {}); }, "pad: x is undefined"}};
}

// Nothing is computed.
const bool registered = RegisterOpCase(
    {.name = "pad", .samples = Samples, .errors = Errors, .tolerances = NoTolerance()});

}  // namespace
}  // namespace lockstep
