#include <cmath>

#include "kernels/loss/loss.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

struct Function {
  const char* name;
  Tensor (*run)(const Tensor&, const Tensor&, Reduction);
  double (*reference)(double, double);
  double flops;
};

double Bce(double x, double t) {
  const double softplus = x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  return softplus - x * t;
}

constexpr Function kFunctions[] = {
    {"mse", ops::MseLoss, [](double x, double t) { return (x - t) * (x - t); }, 2},
    {"l1", ops::L1Loss, [](double x, double t) { return std::fabs(x - t); }, 2},
    {"bce", ops::BceWithLogits, Bce, 12}};

std::vector<RefTensor> Reference(const Function& f, RefSpan in, Reduction reduction) {
  RefTensor losses(in[0].shape), total(Shape{});
  for (size_t i = 0; i < losses.data.size(); ++i) {
    losses.data[i] = f.reference(in[0].data[i], in[1].data[i]);
    total.data[0] += losses.data[i];
  }
  if (reduction == Reduction::kNone) return {losses};
  if (reduction == Reduction::kMean) total.data[0] /= static_cast<double>(losses.data.size());
  return {total};
}

// Targets are probabilities; predictions lie above or below them.
OpSample Sample(const Function& f, const std::string& name, const Shape& shape, Reduction reduction,
                double range = 4, bool non_contiguous = false) {
  return {
      .name = StrCat(f.name, "_", name),
      .inputs = {{.shape = shape, .low = -range, .high = range, .non_contiguous = non_contiguous},
                 {.shape = shape, .low = 0, .high = 1, .non_contiguous = non_contiguous}},
      .run = [=](TensorSpan in) { return f.run(in[0], in[1], reduction); },
      .reference = [=](RefSpan in) { return Reference(f, in, reduction); },
      .kinks = f.run == ops::L1Loss};
}

std::vector<OpSample> Samples() {
  constexpr Reduction kNone = Reduction::kNone, kSum = Reduction::kSum, kMean = Reduction::kMean;
  std::vector<OpSample> samples;
  for (const Function& f : kFunctions) {
    for (const OpSample& s :
         {Sample(f, "empty", {0, 3}, kSum), Sample(f, "one", {}, kMean),
          Sample(f, "none", {3, 5, 7}, kNone), Sample(f, "sum", {7, 13}, kSum),
          Sample(f, "mean", {7, 13}, kMean), Sample(f, "chunks", {33001}, kMean),
          Sample(f, "large_values", {5, 11}, kNone, 300),
          Sample(f, "transposed", {5, 9}, kNone, 4, true)}) {
      samples.push_back(s);
    }
    OpSample large = Sample(f, "large", {4096, 768}, kNone);
    large.benchmark = {.flops = f.flops * 4096 * 768,
                       .elements = 3.0 * 4096 * 768,
                       .backward_elements = 8.0 * 4096 * 768};
    samples.push_back(large);
  }
  return samples;
}

std::vector<ErrorSample> Errors() {
  return {
      {"shapes", [](Device d) { ops::MseLoss(Zeros(d, 2, 1), Zeros(d, 2)); },
       "mse_loss: the target must have the shape, dtype and device of x, f32[2, 1] on cpu, got "
       "f32[2] on cpu"},
      {"dtypes", [](Device d) { ops::L1Loss(Zeros(d, 2), Zeros(DType::kBF16, d, 2)); },
       "l1_loss: the target must have the shape, dtype and device of x"},
      {"integers",
       [](Device d) { ops::BceWithLogits(Zeros(DType::kI32, d, 2), Zeros(DType::kI32, d, 2)); },
       "bce_with_logits: x must be a floating tensor, got i32[2] on cpu"},
      {"undefined", [](Device d) { ops::MseLoss(Zeros(d, 2), Tensor()); }, "got undefined tensor"},
      {"mean_of_nothing", [](Device d) { ops::MseLoss(Zeros(d, 0), Zeros(d, 0)); },
       "mean over no elements"}};
}

const bool registered = RegisterOpCase({.name = "loss", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
