#include <algorithm>
#include <cmath>

#include "kernels/op_case/op_case.h"
#include "kernels/softmax/softmax.h"

namespace lockstep {
namespace {

RefTensor Reference(bool logarithm, const RefTensor& x) {
  RefTensor y = x;
  const int64_t n = x.shape[-1];
  for (size_t at = 0; at < y.data.size(); at += n) {
    double* row = y.data.data() + at;
    const double max = *std::max_element(row, row + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(row[i] - max);
    for (int64_t i = 0; i < n; ++i) {
      row[i] = logarithm ? row[i] - max - std::log(sum) : std::exp(row[i] - max) / sum;
    }
  }
  return y;
}

OpSample Sample(bool logarithm, const std::string& name, const InputSpec& x) {
  return {
      .name = StrCat(logarithm ? "log_" : "", name),
      .inputs = {x},
      .run =
          [=](TensorSpan in) { return logarithm ? ops::LogSoftmax(in[0]) : ops::Softmax(in[0]); },
      .reference = [=](RefSpan in) { return Reference(logarithm, in[0]); }};
}

// Over the first dimension.
OpSample Columns(bool logarithm) {
  OpSample s = Sample(logarithm, "columns", {.shape = {7, 5}, .low = -3, .high = 3});
  const auto transposed = [](const RefTensor& x) {
    RefTensor y({x.shape[1], x.shape[0]});
    for (int64_t i = 0; i < x.shape.numel(); ++i) {
      y.data[i % x.shape[1] * x.shape[0] + i / x.shape[1]] = x.data[i];
    }
    return y;
  };
  s.run = [=](TensorSpan in) {
    return logarithm ? ops::LogSoftmax(in[0], 0) : ops::Softmax(in[0], -2);
  };
  s.reference = [=](RefSpan in) { return transposed(Reference(logarithm, transposed(in[0]))); };
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> samples;
  for (bool logarithm : {false, true}) {
    OpSample large = Sample(logarithm, "large", {.shape = {4096, 1024}, .low = -4, .high = 4});
    large.benchmark = {.flops = 5.0 * 4096 * 1024,
                       .elements = 2.0 * 4096 * 1024,
                       .backward_flops = 5.0 * 4096 * 1024,
                       .backward_elements = 3.0 * 4096 * 1024};
    const std::vector<OpSample> some = {
        Sample(logarithm, "empty", {.shape = {0, 4}}),
        Sample(logarithm, "empty_rows", {.shape = {3, 0}}),
        Sample(logarithm, "one", {.shape = {1}}),
        Columns(logarithm),
        Sample(logarithm, "one_column", {.shape = {5, 1}}),
        Sample(logarithm, "odd", {.shape = {2, 3, 17}, .low = -3, .high = 3}),
        Sample(logarithm, "peaked", {.shape = {4, 9}, .low = -40, .high = 40}),
        Sample(logarithm, "shifted", {.shape = {4, 9}, .low = 1000, .high = 1008}),
        Sample(logarithm, "vocabulary", {.shape = {2, 5003}, .low = -5, .high = 5}),
        Sample(logarithm, "whole_packs", {.shape = {2, 5008}, .low = -5, .high = 5}),
        Sample(logarithm, "many_rows", {.shape = {700, 50}, .low = -5, .high = 5}),
        Sample(logarithm, "transposed",
               {.shape = {5, 9}, .low = -3, .high = 3, .non_contiguous = true}),
        large};
    samples.insert(samples.end(), some.begin(), some.end());
  }
  return samples;
}

std::vector<ErrorSample> Errors() {
  return {{"integers", [](Device d) { ops::Softmax(Zeros(DType::kI32, d, 2)); },
           "softmax: x must be a floating tensor with at least one dimension, got i32[2]"},
          {"scalar", [](Device d) { ops::LogSoftmax(Zeros(d)); },
           "log_softmax: x must be a floating tensor with at least one dimension, got f32[]"}};
}

const bool registered = RegisterOpCase({.name = "softmax", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
