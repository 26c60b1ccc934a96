#include <cmath>

#include "kernels/muon/muon.h"
#include "kernels/op_case/update_case.h"

namespace lockstep {
namespace {

// A large learning rate, so that the update is most of the result.
constexpr double kLr = 0.5, kDecay = 0.2, kLossScale = 4;

void Begin(StepState& state) { state.Begin(/*step=*/3, kLr, 0, 0, kLossScale); }

// Inputs: value, grad, momentum and, optionally, master.
std::vector<Tensor> Run(const MuonHyper& hyper, std::span<const Tensor> in) {
  StepState state(in[0].device(), 1);
  Begin(state);
  const UpdateInputs t = UpdateInputsOf(in, 1);
  const MuonTensors tensors = {.value = t.value,
                               .grad = t.grad,
                               .momentum = t.states[0],
                               .master = t.master,
                               .weight_decay = kDecay};
  ops::MuonUpdate(std::span(&tensors, 1), hyper, state);
  return {t.value, t.states[0]};
}

struct Matrix {
  int64_t rows, columns;
  std::vector<double> data;
  Matrix(int64_t r, int64_t c) : rows(r), columns(c), data(r * c) {}
  double& operator()(int64_t i, int64_t j) { return data[i * columns + j]; }
  double operator()(int64_t i, int64_t j) const { return data[i * columns + j]; }
};

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.columns; ++j) {
      for (int64_t k = 0; k < a.columns; ++k) out(i, j) += a(i, k) * b(k, j);
    }
  }
  return out;
}

Matrix Transposed(const Matrix& a) {
  Matrix out(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) out(j, i) = a(i, j);
  }
  return out;
}

// Always from the left: a X + b (X X^T) X + c (X X^T)^2 X.
Matrix Orthogonalized(Matrix x, const MuonHyper& h) {
  double squares = 0;
  for (double v : x.data) squares += v * v;
  for (double& v : x.data) v /= std::max(std::sqrt(squares), h.eps);
  for (int step = 0; step < h.steps; ++step) {
    const Matrix gram = Product(x, Transposed(x));
    const Matrix once = Product(gram, x), twice = Product(gram, once);
    for (size_t i = 0; i < x.data.size(); ++i) {
      x.data[i] = h.a * x.data[i] + h.b * once.data[i] + h.c * twice.data[i];
    }
  }
  return x;
}

std::vector<RefTensor> Reference(const MuonHyper& h, std::span<const RefTensor> in) {
  StepState state(kCpu, 1);
  Begin(state);
  const double lr = state.Read().lr;  // as f32 has it
  RefTensor p = UpdatedValue(in, 1), m = in[2];
  const int64_t rows = p.shape[0], columns = p.shape[1];
  Matrix u(rows, columns);
  for (size_t i = 0; i < m.data.size(); ++i) {
    const double g = in[1].data[i] / kLossScale;
    m.data[i] = h.momentum * m.data[i] + (1 - h.momentum) * g;
    u.data[i] = h.nesterov ? (1 - h.momentum) * g + h.momentum * m.data[i] : m.data[i];
  }
  const Matrix x = Orthogonalized(u, h);
  const double larger = static_cast<double>(std::max(rows, columns));
  const double ratio = static_cast<double>(rows) / static_cast<double>(columns);
  const double scale =
      h.scale == MuonScale::kMatchAdamW ? 0.2 * std::sqrt(larger) : std::sqrt(std::max(1.0, ratio));
  for (size_t i = 0; i < p.data.size(); ++i) {
    p.data[i] = p.data[i] * (1 - lr * kDecay) - lr * scale * x.data[i];
  }
  return {p, m};
}

OpSample Sample(const std::string& name, const InputSpec& like, const MuonHyper& hyper = {},
                bool master = false) {
  OpSample s = UpdateSample(name, like, 1, master);
  s.run = [=](std::span<const Tensor> in) { return Run(hyper, in); };
  s.reference = [=](std::span<const RefTensor> in) { return Reference(hyper, in); };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample zeros = Sample("zeros", {.shape = {4, 3}});
  for (size_t i : {1, 2}) zeros.inputs[i].low = zeros.inputs[i].high = 0;
  OpSample large = Sample("1024 x 4096", {.shape = {1024, 4096}});
  large.flops = 5 * 2.0 * 1024 * 1024 * (4096 + 1024 + 4096);
  large.elements_moved = 1024.0 * 4096 * 5;
  large.benchmark_only = true;
  return {Sample("empty", {.shape = {0, 3}}),
          Sample("one", {.shape = {1, 1}}),
          Sample("wide", {.shape = {7, 19}}),
          Sample("tall", {.shape = {19, 7}}),
          Sample("square", {.shape = {12, 12}}),
          Sample("row", {.shape = {1, 9}}),
          Sample("spectral scale, tall", {.shape = {19, 7}}, {.scale = MuonScale::kSpectral}),
          Sample("spectral scale, wide", {.shape = {7, 19}}, {.scale = MuonScale::kSpectral}),
          Sample("heavy ball", {.shape = {6, 10}}, {.momentum = 0.8, .nesterov = false}),
          Sample("one step", {.shape = {6, 10}}, {.steps = 1}),
          Sample("several chunks", {.shape = {40, 500}}),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}),
          Sample("master", {.shape = {7, 13}}, {}, true),
          zeros,
          large};
}

std::vector<ErrorSample> Errors() {
  using T = MuonTensors;
  const UpdateErrors<T, MuonHyper> error(ops::MuonUpdate, {&T::value, &T::grad, &T::momentum});
  return {
      error(
          "vector", [](auto& t, auto&) { t.value = t.grad = t.momentum = t.value.View({6}); },
          "muon: tensor 0 must be a matrix, got f32[6] on "),
      error(
          "momentum of 1", [](auto&, auto& hyper) { hyper.momentum = 1; },
          "muon: momentum must be in [0, 1), got 1"),
      error(
          "many steps", [](auto&, auto& hyper) { hyper.steps = 100; },
          "muon: steps must be in [0, 100), got 100"),
      error(
          "no eps", [](auto&, auto& hyper) { hyper.eps = 0; }, "muon: eps must be positive, got 0"),
      error(
          "no momentum", [](auto& t, auto&) { t.momentum = Tensor(); },
          "muon: momentum of tensor 0 must be a contiguous f32[2, 3]")};
}

OpCase Make() {
  OpCase c;
  c.name = "muon";
  c.dtypes = {DType::kF64, DType::kF32, DType::kBF16};
  c.differentiable = false;
  c.samples = Samples;
  c.errors = Errors;
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
