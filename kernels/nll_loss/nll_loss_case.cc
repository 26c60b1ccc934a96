#include "kernels/nll_loss/nll_loss.h"
#include "kernels/op_case/references.h"

namespace lockstep {
namespace {

constexpr int64_t kIgnore = 2;  // a target that samples contain

// in: logarithms [..., V], targets [...].
RefTensor Reference(RefSpan in, Reduction reduction, int64_t ignore) {
  return LossReference(in[1], reduction, ignore, [&](int64_t i, int64_t target) {
    return -in[0].data[i * in[0].shape[-1] + target];
  });
}

OpSample Sample(const std::string& name, const Shape& shape, Reduction reduction,
                int64_t ignore = -1, bool non_contiguous = false) {
  return {.name = name,
          .inputs = {{.shape = shape, .low = -6, .high = 0, .non_contiguous = non_contiguous},
                     {.shape = Shape(std::span(shape.begin(), shape.end() - 1)),
                      .low = 0,
                      .high = static_cast<double>(shape[-1]),
                      .index = true}},
          .run = [=](TensorSpan in) { return ops::NllLoss(in[0], in[1], reduction, ignore); },
          .reference = [=](RefSpan in) { return Reference(in, reduction, ignore); }};
}

std::vector<OpSample> Samples() {
  constexpr Reduction kNone = Reduction::kNone, kSum = Reduction::kSum, kMean = Reduction::kMean;
  OpSample large = Sample("large", {8192, 1000}, kMean);
  // Forward reads an element of each row, backward writes all.
  large.benchmark = {.elements = 8192, .backward_elements = 8192.0 * 1000};
  return {Sample("empty", {0, 5}, kSum),
          Sample("one", {1, 1}, kMean),
          Sample("single", {5}, kMean),
          Sample("none", {3, 7, 19}, kNone),
          Sample("sum", {3, 7, 19}, kSum),
          Sample("mean", {21, 19}, kMean),
          Sample("none_ignore", {11, 4}, kNone, kIgnore),
          Sample("mean_ignore", {11, 4}, kMean, kIgnore),
          Sample("all_ignored", {6, 1}, kMean, 0),
          Sample("many_rows", {33001, 3}, kMean),
          Sample("transposed", {9, 12}, kSum, -1, true),
          large};
}

std::vector<ErrorSample> Errors() {
  const auto run = [](const Shape& log_probs, const Shape& targets, DType dtype, double target) {
    return [=](Device d) {
      ops::NllLoss(Tensor::Zeros(log_probs, DType::kF32, d),
                   Tensor::Full(targets, target, dtype, d));
    };
  };
  // Targets are checked only on the CPU: other devices could not report to the host.
  const auto value = [=](double target) {
    return [=](Device) { run({2, 3}, {2}, DType::kI64, target)(kCpu); };
  };
  return {{"shapes", run({2, 3}, {3}, DType::kI32, 0),
           "nll_loss: targets must have the shape of log_probs without the last dimension, [2] on "
           "cpu, got i32[3] on cpu"},
          {"float_targets", run({2, 3}, {2}, DType::kF32, 0),
           "nll_loss: targets must be i32 or i64, got f32[2] on cpu"},
          {"no_classes", run({2, 0}, {2}, DType::kI32, 0), "with V > 0, got f32[2, 0] on cpu"},
          {"too_large", value(3), "nll_loss: target 3 at position 0 is outside of the 3 classes"},
          {"negative", value(-2), "nll_loss: target -2 at position 0"}};
}

const bool registered = RegisterOpCase({.name = "nll_loss", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
