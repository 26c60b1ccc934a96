#include <cmath>

#include "kernels/gelu/gelu.h"
#include "kernels/op_case/references.h"

namespace lockstep {
namespace {

double Exact(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }

OpSample Sample(GeluForm form, const std::string& name, const InputSpec& x) {
  return {.name = form == GeluForm::kExact ? "exact_" + name : name,
          .inputs = {x},
          .run = [form](TensorSpan in) { return ops::Gelu(in[0], form); },
          .reference = OfEach(
              [form](double v) { return form == GeluForm::kExact ? Exact(v) : GeluTanh(v); })};
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> s;
  for (GeluForm form : {GeluForm::kTanh, GeluForm::kExact}) {
    s.push_back(Sample(form, "empty", {.shape = {0, 3}}));
    s.push_back(Sample(form, "one", {.shape = {1}}));
    s.push_back(Sample(form, "odd", {.shape = {7, 13}, .low = -4, .high = 4}));
    s.push_back(Sample(form, "saturated", {.shape = {40}, .low = -30, .high = 30}));
    s.push_back(Sample(form, "chunks", {.shape = {33001}, .low = -5, .high = 5}));
    s.push_back(Sample(form, "transposed",
                       {.shape = {5, 9}, .low = -4, .high = 4, .non_contiguous = true}));
    OpSample large = Sample(form, "mlp", {.shape = {1024, 3072}, .low = -4, .high = 4});
    large.benchmark = {.flops = 1024.0 * 3072 * 20,
                       .elements = 1024.0 * 3072 * 2,
                       .backward_elements = 1024.0 * 3072 * 3};
    s.push_back(large);
  }
  return s;
}

std::vector<ErrorSample> Errors() {
  return {{"integers", [](Device d) { ops::Gelu(Zeros(DType::kI32, d, 2)); },
           "gelu: x must be a floating tensor, got i32[2]"}};
}

const bool registered = RegisterOpCase({.name = "gelu", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
