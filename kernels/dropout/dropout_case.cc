#include "core/philox.h"
#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_mask.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 1337, kSite = HashName("h.0.mlp.dropout");
constexpr int64_t kStep = 12;

OpSample Sample(const std::string& name, const InputSpec& x, double p, int64_t first_sample = 0) {
  OpSample s;
  s.name = name;
  s.inputs = {x};
  s.run = [=](TensorSpan in) {
    StepState state(in[0].device(), kSeed);
    state.Begin(kStep, 0);
    state.SetFirstSample(first_sample);
    const TrainingScope scope(state);
    return ops::Dropout(in[0], p, kSite);
  };
  s.reference = [=](RefSpan in) {
    RefTensor y(in[0].shape);
    const int64_t samples = y.shape.ndim() > 0 ? y.shape[0] : 1;
    for (size_t i = 0; i < y.data.size(); ++i) {
      const uint64_t place = first_sample * (y.data.size() / samples) + i;
      const bool keep = ToUniform(Philox(kSeed).At(StepStream(kSite, kStep), place)) >= p;
      y.data[i] = keep ? in[0].data[i] / (1 - p) : 0;
    }
    return y;
  };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample twice = Sample("same input twice", {.shape = {3, 5}}, 0.25);
  twice.run = [run = twice.run](TensorSpan in) { return std::vector{run(in)[0], run(in)[0]}; };
  twice.reference = [reference = twice.reference](RefSpan in) {
    return std::vector{reference(in)[0], reference(in)[0]};
  };
  OpSample large = Sample("gpt2", {.shape = {8, 1024, 768}}, 0.1);
  large.benchmark = {.flops = 8.0 * 1024 * 768, .elements = 8.0 * 1024 * 768 * 2};
  return {Sample("empty", {.shape = {0, 3}}, 0.5),
          Sample("no elements per sample", {.shape = {2, 0}}, 0.5),
          Sample("scalar", {.shape = {}}, 0.5, 1),
          Sample("odd", {.shape = {3, 7, 11}}, 0.2),
          Sample("from sample 5", {.shape = {2, 7, 3}}, 0.5, 5),
          Sample("far sample", {.shape = {2, 9}}, 0.5, int64_t{1} << 40),
          Sample("several batches of numbers", {.shape = {2, 401}}, 0.75, 3),
          Sample("no dropout", {.shape = {4}}, 0),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}, 0.5, 1),
          twice,
          large};
}

std::vector<ErrorSample> Errors() {
  return {{"probability of 1", [](Device d) { ops::Dropout(Zeros(d, 2), 1, kSite); },
           "dropout: the probability must be in [0, 1), got 1"},
          {"negative probability", [](Device d) { ops::Dropout(Zeros(d, 2), -0.5, kSite); },
           "dropout: the probability must be in [0, 1), got -0.5"},
          {"integers", [](Device d) { ops::Dropout(Zeros(DType::kI32, d, 2), 0.5, kSite); },
           "dropout: x must be a floating tensor, got i32[2]"},
          {"state on another device",
           [](Device d) {
             const StepState state(kMeta, kSeed);
             const TrainingScope scope(state);
             ops::Dropout(Zeros(d, 2), 0.5, kSite);
           },
           "the StepState of the TrainingScope on meta"}};
}

const bool registered = RegisterOpCase({.name = "dropout", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
