#include "kernels/op_case/references.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep {
namespace {

constexpr int64_t kIgnore = 2;  // a target that samples contain

OpSample Sample(const std::string& name, InputSpec logits, Reduction reduction, int64_t ignore = -1,
                double z_loss = 0) {
  InputSpec targets;
  for (int i = 0; i + 1 < logits.shape.ndim(); ++i) targets.shape.push_back(logits.shape[i]);
  targets.low = 0;
  targets.high = static_cast<double>(logits.shape[-1]);
  targets.index = true;
  return {.name = name,
          .inputs = {logits, targets},
          .run =
              [=](TensorSpan in) {
                return ops::SoftmaxCrossEntropy(in[0], in[1], reduction, ignore, z_loss);
              },
          .reference =
              [=](RefSpan in) {
                return CrossEntropyReference(in[0], in[1], reduction, ignore, z_loss);
              }};
}

std::vector<OpSample> Samples() {
  const InputSpec odd{.shape = {3, 7, 19}, .low = -4, .high = 4};
  std::vector<OpSample> s = {
      Sample("empty", {.shape = {0, 5}}, Reduction::kSum),
      Sample("one", {.shape = {1, 1}}, Reduction::kMean),
      Sample("single", {.shape = {5}}, Reduction::kMean),
      Sample("none", odd, Reduction::kNone),
      Sample("sum", odd, Reduction::kSum),
      Sample("mean", odd, Reduction::kMean),
      Sample("none_ignore", {.shape = {11, 4}}, Reduction::kNone, kIgnore),
      Sample("mean_ignore", {.shape = {11, 4}}, Reduction::kMean, kIgnore),
      Sample("all_ignored", {.shape = {6, 1}}, Reduction::kMean, 0),
      Sample("large_logits", {.shape = {4, 33}, .low = -300, .high = 300}, Reduction::kSum),
      Sample("many_classes", {.shape = {2, 1003}, .low = -6, .high = 6}, Reduction::kMean),
      Sample("whole_packs", {.shape = {3, 2064}, .low = -6, .high = 6}, Reduction::kMean),
      Sample("many_rows", {.shape = {1100, 3}}, Reduction::kMean),
      Sample("z_loss", odd, Reduction::kNone, -1, 0.05),
      Sample("z_loss_ignore", {.shape = {11, 4}}, Reduction::kMean, kIgnore, 0.05),
      Sample("transposed", {.shape = {9, 12}, .non_contiguous = true}, Reduction::kSum)};
  for (const int64_t classes : {16391, 20480}) {
    OpSample vocabulary = Sample(StrCat("vocabulary of ", classes),
                                 {.shape = {2, classes}, .low = -6, .high = 6}, Reduction::kMean);
    vocabulary.finite_differences = false;  // slow, and the other samples have them
    s.push_back(vocabulary);
  }
  OpSample gpt2 =
      Sample("gpt2", {.shape = {256, 50304}, .low = -4, .high = 4, .non_contiguous = false},
             Reduction::kMean);
  gpt2.benchmark = {.flops = 256.0 * 50304 * 15, .elements = 256.0 * 50304};
  s.push_back(gpt2);
  return s;
}

std::vector<ErrorSample> Errors() {
  const auto run = [](const Shape& logits, const Shape& targets, DType dtype, double target) {
    return [=](Device d) {
      ops::SoftmaxCrossEntropy(Tensor::Zeros(logits, DType::kF32, d),
                               Tensor::Full(targets, target, dtype, d));
    };
  };
  // Targets are checked only on the CPU: other devices could not report to the host.
  const auto value = [=](DType dtype, double target) {
    return [=](Device) { run({2, 3}, {2}, dtype, target)(kCpu); };
  };
  return {
      {"shapes", run({2, 3}, {3}, DType::kI32, 0),
       "targets must have the shape of the logits without the last dimension, [2]"},
      {"float_targets", run({2, 3}, {2}, DType::kF32, 0), "targets must be i32 or i64, got f32"},
      {"no_classes", run({2, 0}, {2}, DType::kI32, 0), "the logits have no classes"},
      {"too_large", value(DType::kI32, 3), "target 3 at position 0 is outside of the 3 classes"},
      {"negative", value(DType::kI64, -2), "target -2 at position 0"}};
}

const bool registered =
    RegisterOpCase({.name = "softmax_cross_entropy", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
