#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// Fill writes in place, whatever the strides; its result does not depend on the input.
OpSample Sample(const std::string& name, const InputSpec& x, double value) {
  return {.name = name,
          .inputs = {x},
          .run =
              [value](TensorSpan in) {
                const Tensor x = in[0].Detach();
                Tensor y = Tensor::EmptyLike(x);
                if (!x.is_contiguous()) {
                  y = Tensor::Empty({x.dim(1), x.dim(0) + 1}, x.dtype(), x.device());
                  y = y.Slice(1, 1, x.dim(0) + 1).Transpose(0, 1);
                }
                y.Fill(value);
                return y;
              },
          .reference =
              [value](RefSpan in) {
                RefTensor y(in[0].shape);
                std::fill(y.data.begin(), y.data.end(), value);
                return y;
              }};
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> s = {
      Sample("empty", {.shape = {0, 4}}, -2.5), Sample("one", {.shape = {}}, -2.5),
      Sample("odd", {.shape = {3, 5, 7}}, -2.5), Sample("chunks", {.shape = {50001}}, -2.5),
      Sample("transposed", {.shape = {7, 11}, .non_contiguous = true}, 0)};
  OpSample large = Sample("large", {.shape = {8 << 20}}, -2.5);
  large.benchmark = {.elements = 8 << 20};
  s.push_back(large);
  return s;
}

// -2.5 is exact in every dtype.
const bool registered = RegisterOpCase(
    {.name = "fill", .samples = Samples, .tolerances = NoTolerance(), .differentiable = false});

}  // namespace
}  // namespace lockstep
