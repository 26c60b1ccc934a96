#include <cmath>

#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "kernels/op_case/references.h"

namespace lockstep {
namespace {

constexpr int64_t kIgnore = 2;  // a target that samples contain

// in: x [..., C], weight [V, C], targets [...].
RefTensor Reference(RefSpan in, Reduction reduction, int64_t ignore, double softcap,
                    double z_loss) {
  RefTensor logits = LinearReference(in[0], in[1], nullptr);
  for (double& z : logits.data) z = softcap > 0 ? softcap * std::tanh(z / softcap) : z;
  return CrossEntropyReference(logits, in[2], reduction, ignore, z_loss);
}

OpSample Sample(const std::string& name, const Shape& x, int64_t v, Reduction reduction,
                int64_t chunk_rows, int64_t ignore = -1, double softcap = 0, double z_loss = 0) {
  OpSample s;
  s.name = name;
  InputSpec targets{.shape = {}, .low = 0, .high = static_cast<double>(v), .index = true};
  for (int i = 0; i + 1 < x.ndim(); ++i) targets.shape.push_back(x[i]);
  s.inputs = {{.shape = x, .low = -2, .high = 2}, {.shape = {v, x[-1]}}, targets};
  s.run = [=](TensorSpan in) {
    return ops::LinearCrossEntropy(in[0], in[1], in[2], reduction, chunk_rows, ignore, softcap,
                                   z_loss);
  };
  s.reference = [=](RefSpan in) { return Reference(in, reduction, ignore, softcap, z_loss); };
  return s;
}

OpSample Benchmark(const std::string& name, int64_t rows, int64_t chunk_rows) {
  constexpr double kC = 768, kV = 50304;
  OpSample s = Sample(name, {rows, 768}, 50304, Reduction::kSum, chunk_rows);
  const auto n = static_cast<double>(rows);
  s.benchmark = {.flops = 2 * n * kC * kV + 15 * n * kV, .elements = n * kC + kC * kV};
  // Backward of the chunked op scales what forward computed.
  if (chunk_rows > 0) s.benchmark->backward_flops = kC * (kV + n);
  return s;
}

std::vector<OpSample> Samples() {
  constexpr Reduction kSum = Reduction::kSum, kMean = Reduction::kMean;
  std::vector<OpSample> s = {Sample("empty", {0, 5}, 3, kSum, 1),
                             Sample("one", {1, 1}, 1, kMean, 1),
                             Sample("single", {5}, 7, kMean, 4),
                             Sample("unchunked", {3, 7, 11}, 19, kMean, 0),
                             Sample("one_chunk", {3, 7, 11}, 19, kSum, 21),
                             Sample("sum", {3, 7, 11}, 19, kSum, 6),
                             Sample("mean", {3, 7, 11}, 19, kMean, 6),
                             Sample("row_by_row", {5, 4}, 6, kSum, 1),
                             Sample("smaller_last_chunk", {7, 4}, 6, kMean, 2),
                             Sample("mean_ignore", {11, 6}, 4, kMean, 3, kIgnore),
                             Sample("sum_ignore", {11, 6}, 4, kSum, 3, kIgnore),
                             Sample("all_ignored", {6, 3}, 1, kMean, 2, 0),
                             Sample("many_classes", {37, 16}, 1003, kMean, 19),
                             Sample("of_eights", {40, 24}, 64, kSum, 24),
                             Sample("many_rows", {1100, 5}, 7, kMean, 256),
                             Sample("capped", {7, 11}, 19, kMean, 3, kIgnore, 0.8),
                             Sample("z_loss", {7, 11}, 19, kMean, 3, kIgnore, 0, 0.05),
                             Sample("z_loss_capped", {7, 11}, 19, kSum, 3, -1, 0.8, 0.05),
                             Sample("z_loss_unchunked", {7, 11}, 19, kSum, 0, -1, 0, 0.05),
                             Sample("capped_unchunked", {7, 11}, 19, kSum, 0, -1, 0.8)};
  OpSample strided = Sample("strided", {9, 12}, 10, kSum, 4);
  strided.inputs[0].non_contiguous = strided.inputs[1].non_contiguous = true;
  s.push_back(strided);
  OpSample frozen_weight = Sample("frozen_weight", {9, 6}, 10, kMean, 4);
  frozen_weight.inputs[1].differentiable = false;
  s.push_back(frozen_weight);
  OpSample vocabulary = Sample("vocabulary", {5, 4}, 16392, kMean, 2);
  vocabulary.finite_differences = false;  // slow, and the other samples have them
  s.push_back(vocabulary);
  s.push_back(Benchmark("gpt2", 1024, 0));
  s.push_back(Benchmark("gpt2_by_256", 1024, 256));
  return s;
}

std::vector<ErrorSample> Errors() {
  const auto run = [](const Shape& x, const Shape& weight, const Shape& targets, double target = 0,
                      Reduction reduction = Reduction::kSum, int64_t chunk_rows = 2,
                      DType dtype = DType::kF32) {
    return [=](Device d) {
      ops::LinearCrossEntropy(Tensor::Zeros(x, DType::kF32, d), Tensor::Zeros(weight, dtype, d),
                              Tensor::Full(targets, target, DType::kI32, d), reduction, chunk_rows);
    };
  };
  return {{"scalar", run({}, {3, 2}, {}),
           "linear_cross_entropy: x must be a floating tensor [..., C], got f32[]"},
          {"wrong_width", run({4, 3}, {5, 2}, {4}),
           "linear_cross_entropy: weight must be f32[V, 3] on "},
          {"mixed", run({4, 3}, {5, 3}, {4}, 0, Reduction::kSum, 2, DType::kF64),
           "with V > 0 for x f32[4, 3]"},
          {"no_classes", run({4, 3}, {0, 3}, {4}), "with V > 0"},
          {"shapes", run({4, 3}, {5, 3}, {3}),
           "linear_cross_entropy: targets must have the shape of x without the last dimension, "
           "[4]"},
          {"float_targets",
           [](Device d) {
             const Tensor x = Zeros(d, 2, 3);
             ops::LinearCrossEntropy(x, x, Zeros(d, 2), Reduction::kSum, 1);
           },
           "linear_cross_entropy: targets must be i32 or i64, got f32[2]"},
          {"per_row", run({4, 3}, {5, 3}, {4}, 0, Reduction::kNone),
           "linear_cross_entropy: the losses must be added up: use kSum or kMean"},
          {"negative_chunk", run({4, 3}, {5, 3}, {4}, 0, Reduction::kSum, -1),
           "linear_cross_entropy: chunk_rows must be at least 0 (0: no limit), got -1"},
          {"negative_cap",
           [](Device d) {
             const Tensor x = Zeros(d, 2, 3);
             ops::LinearCrossEntropy(x, x, Zeros(DType::kI32, d, 2), Reduction::kSum, 1, -1, -2);
           },
           "linear_cross_entropy: softcap must be at least 0 (0: none), got -2"},
          // Targets are checked only on the CPU: other devices could not report to the host.
          {"target_of_a_later_chunk",
           [](Device) {
             const Tensor x = Zeros(kCpu, 5, 3);
             ops::LinearCrossEntropy(x, x, Tensor::FromVector<int32_t>({0, 1, 4, 5, 2}, {5}),
                                     Reduction::kSum, 2);
           },
           "target 5 at position 3 is outside of the 5 classes"}};
}

const bool registered =
    RegisterOpCase({.name = "linear_cross_entropy", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
