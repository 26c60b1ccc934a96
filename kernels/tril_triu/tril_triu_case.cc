#include <limits>

#include "kernels/op_case/op_case.h"
#include "kernels/tril_triu/tril_triu.h"

namespace lockstep {
namespace {

RefTensor Reference(bool upper, int64_t diagonal, const RefTensor& x) {
  RefTensor y = x;
  const int64_t m = x.shape[-2], n = x.shape[-1];
  for (int64_t at = 0; at < static_cast<int64_t>(y.data.size()); ++at) {
    const int64_t i = at / n % m, j = at % n;
    if (upper ? j - i < diagonal : j - i > diagonal) y.data[at] = 0;
  }
  return y;
}

OpSample Sample(bool upper, const std::string& name, const InputSpec& x, int64_t diagonal) {
  return {.name = StrCat(upper ? "triu_" : "tril_", name),
          .inputs = {x},
          .run =
              [=](TensorSpan in) {
                return upper ? ops::Triu(in[0], diagonal) : ops::Tril(in[0], diagonal);
              },
          .reference = [=](RefSpan in) { return Reference(upper, diagonal, in[0]); }};
}

std::vector<OpSample> Samples() {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  std::vector<OpSample> samples;
  for (const bool upper : {false, true}) {
    OpSample large = Sample(upper, "large", {.shape = {8, 1024, 1024}}, 0);
    large.benchmark = {.elements = 2.0 * 8 * 1024 * 1024,
                       .backward_elements = 2.0 * 8 * 1024 * 1024};
    OpSample boolean =
        Sample(upper, "bool", {.shape = {4, 5}, .low = 1, .high = 2, .index = true}, 0);
    boolean.run = [upper](TensorSpan in) {
      const Tensor x = in[0].To(DType::kBool);
      return upper ? ops::Triu(x) : ops::Tril(x);
    };
    const std::vector<OpSample> some = {
        Sample(upper, "empty", {.shape = {2, 0, 3}}, 0),
        Sample(upper, "one", {.shape = {1, 1}}, 0),
        Sample(upper, "one_outside", {.shape = {1, 1}}, upper ? 1 : -1),
        Sample(upper, "square", {.shape = {7, 7}}, 0),
        Sample(upper, "wide", {.shape = {3, 4, 9}}, 2),
        Sample(upper, "tall", {.shape = {2, 2, 9, 4}}, -3),
        Sample(upper, "beyond", {.shape = {4, 5}}, kMost),
        Sample(upper, "before", {.shape = {4, 5}}, -kMost),
        Sample(upper, "transposed", {.shape = {5, 6}, .non_contiguous = true}, 1),
        Sample(upper, "i32", {.shape = {4, 5}, .low = 1, .high = 90, .index = true}, 0),
        Sample(upper, "chunks", {.shape = {3, 150, 130}}, -20),
        boolean,
        large};
    samples.insert(samples.end(), some.begin(), some.end());
  }
  return samples;
}

std::vector<ErrorSample> Errors() {
  return {{"vector", [](Device d) { ops::Tril(Zeros(d, 3)); },
           "tril: x must be a matrix or a batch of matrices [..., M, N], got f32[3]"},
          {"undefined", [](Device) { ops::Triu(Tensor()); },
           "triu: x must be a matrix or a batch of matrices [..., M, N], got undefined tensor"}};
}

// Nothing is computed.
const bool registered = RegisterOpCase(
    {.name = "tril_triu", .samples = Samples, .errors = Errors, .tolerances = NoTolerance()});

}  // namespace
}  // namespace lockstep
