#include "core/slots.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// A copy of the first input plus the second.
OpSample Sample(const std::string& name, const InputSpec& sum, const InputSpec& term) {
  return {.name = name,
          .inputs = {sum, term},
          .run =
              [](TensorSpan in) {
                const Tensor sum = in[0].Clone();
                accumulate_slot(CurrentStream(sum.device()), in[1].Detach(), sum);
                return sum;
              },
          .reference =
              [](RefSpan in) {
                RefTensor y = in[0];
                for (size_t i = 0; i < y.data.size(); ++i) y.data[i] += in[1].data[i];
                return y;
              }};
}

std::vector<OpSample> Samples() {
  const InputSpec odd{.shape = {5, 9}};
  const InputSpec f32{.shape = {5, 9}, .dtype = DType::kF32};
  const InputSpec wide{.shape = {5, 9}, .dtype = DType::kF64};
  const InputSpec strided{.shape = {5, 9}, .non_contiguous = true};
  std::vector<OpSample> s = {Sample("empty", {.shape = {0, 4}}, {.shape = {0, 4}}),
                             Sample("one", {.shape = {}}, {.shape = {}}),
                             Sample("odd", odd, odd),
                             Sample("chunks", {.shape = {50001}}, {.shape = {50001}}),
                             Sample("strided_term", odd, strided),
                             Sample("wide_term", odd, wide),
                             Sample("into_f32", f32, odd),
                             Sample("from_f32", odd, f32)};
  OpSample large = Sample("large", {.shape = {8 << 20}}, {.shape = {8 << 20}});
  // With the copy.
  large.benchmark = {.flops = 8 << 20, .elements = 5.0 * (8 << 20)};
  s.push_back(large);
  return s;
}

const bool registered =
    RegisterOpCase({.name = "accumulate", .samples = Samples, .differentiable = false});

}  // namespace
}  // namespace lockstep
