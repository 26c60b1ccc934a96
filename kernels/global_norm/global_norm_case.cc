#include <cmath>
#include <limits>

#include "kernels/global_norm/global_norm.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// One of the values of four bytes of the state, as a tensor of its own.
Tensor Field(const StepState& state, size_t offset, DType dtype = DType::kF32) {
  const int64_t index = static_cast<int64_t>(offset / sizeof(float));
  return Tensor::FromStorage(state.tensor().storage(), dtype, {1}, index).Clone();
}

OpSample Sample(const std::string& name, const std::vector<InputSpec>& grads, double max_norm,
                double loss_scale = 1, float norm_limit = INFINITY) {
  OpSample s;
  s.name = name;
  s.inputs = grads;
  s.run = [=](TensorSpan in) {
    StepState state(in[0].device(), 1);
    state.EnableLossScaling({.init = loss_scale});
    state.Begin(0, 0.1);
    state.SetNormLimit(norm_limit);
    std::vector<Tensor> contiguous;
    for (const Tensor& grad : in) contiguous.push_back(grad.Contiguous());
    ops::GradNorm(contiguous, max_norm, state);
    return std::vector{Field(state, offsetof(StepValues, grad_norm)),
                       Field(state, offsetof(StepValues, clip_factor)),
                       Field(state, offsetof(StepValues, found_inf), DType::kI32)};
  };
  s.reference = [=](RefSpan in) {
    double squares = 0;
    for (const RefTensor& grad : in) {
      for (double x : grad.data) squares += x * x;
    }
    RefTensor norm({1}), factor({1}), found({1});
    norm.data[0] = std::sqrt(squares) / loss_scale;
    factor.data[0] = max_norm > 0 ? std::min(1.0, max_norm / (norm.data[0] + 1e-6)) : 1;
    found.data[0] = norm.data[0] > norm_limit ? kSpike : 0;
    return std::vector{norm, factor, found};
  };
  return s;
}

std::vector<OpSample> Samples() {
  // 124 million elements would not fit small machines; bandwidth is that of 16 million.
  OpSample large = Sample("16 million", {{.shape = {4096, 4096}}}, 1);
  large.benchmark = {.flops = 2.0 * 4096 * 4096, .elements = 4096.0 * 4096};
  return {Sample("empty", {{.shape = {0, 3}}}, 1),
          Sample("one", {{.shape = {1}}}, 0.001),
          Sample("several", {{.shape = {7, 13}}, {.shape = {5}}, {.shape = {3, 2, 2}}}, 1),
          Sample("not clipped", {{.shape = {7, 13}}, {.shape = {5}}}, 100),
          Sample("measured only", {{.shape = {31}}}, 0),
          Sample("infinite limit", {{.shape = {31}}}, std::numeric_limits<double>::infinity()),
          Sample("scaled loss", {{.shape = {31}}, {.shape = {2}}}, 0.5, 1024),
          Sample("above the limit", {{.shape = {31}}}, 0.5, 2, 0.001f),
          Sample("any is above", {{.shape = {0}}}, 0.5, 1, -1.0f),
          Sample("below the limit", {{.shape = {31}}}, 0.5, 1, 1000.0f),
          Sample("several chunks", {{.shape = {5, 13001}}, {.shape = {16384}}}, 1),
          Sample("strided", {{.shape = {5, 9}, .non_contiguous = true}}, 1),
          large};
}

std::vector<ErrorSample> Errors() {
  return {{"negative limit", [](Device d) { ops::GradNorm({}, -1, StepState(d, 1)); },
           "grad_norm: max_norm must be at least 0 (0 = measure only), got -1"},
          {"limit is NaN", [](Device d) { ops::GradNorm({}, std::nan(""), StepState(d, 1)); },
           "grad_norm: max_norm must be at least 0"},
          {"integers",
           [](Device d) {
             const std::vector<Tensor> grads = {Zeros(d, 2), Zeros(DType::kI32, d, 2)};
             ops::GradNorm(grads, 1, StepState(d, 1));
           },
           "grad_norm: gradient 1 must be contiguous, floating"}};
}

const bool registered = RegisterOpCase(
    {.name = "global_norm", .samples = Samples, .errors = Errors, .differentiable = false});

}  // namespace
}  // namespace lockstep
