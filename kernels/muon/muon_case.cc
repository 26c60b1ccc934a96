#include <cmath>

#include "kernels/muon/muon.h"
#include "kernels/op_case/update_case.h"

namespace lockstep {
namespace {

using Case = UpdateCase<MuonHyper>;

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

void Reference(const Case& c, const MuonHyper& h, const RefTensor& g, RefTensor& p,
               std::span<RefTensor> states) {
  RefTensor& m = states[0];
  const double lr = c.Lr();
  const int64_t rows = p.shape[0], columns = p.shape[1];
  Matrix u(rows, columns);
  for (size_t i = 0; i < m.data.size(); ++i) {
    m.data[i] = h.momentum * m.data[i] + (1 - h.momentum) * g.data[i];
    u.data[i] = h.nesterov ? (1 - h.momentum) * g.data[i] + h.momentum * m.data[i] : m.data[i];
  }
  const Matrix x = Orthogonalized(u, h);
  const double larger = static_cast<double>(std::max(rows, columns));
  const double ratio = static_cast<double>(rows) / static_cast<double>(columns);
  const double scale =
      h.scale == MuonScale::kMatchAdamW ? 0.2 * std::sqrt(larger) : std::sqrt(std::max(1.0, ratio));
  for (size_t i = 0; i < p.data.size(); ++i) {
    p.data[i] = c.Decayed(p.data[i], x.data[i], lr, h.decay) - lr * scale * x.data[i];
  }
}

OpCase Make() {
  const Case c = {.name = "muon",
                  .update = ops::MuonUpdate,
                  .states = kMuonStates,
                  .reference = Reference,
                  .hyper = {},
                  .lr = 0.5,  // large, so that the update is most of the result
                  .weight_decay = 0.2,
                  // For a 4096 x 4096 matrix: five times three products, as if none was symmetric.
                  .flops = 5 * 3 * 2.0 * 4096};
  OpSample zeros = c.Sample("zeros", {.shape = {4, 3}}, c.hyper);
  for (size_t i : {1, 2}) zeros.inputs[i].low = zeros.inputs[i].high = 0;
  return c.Case(
      {c.Sample("wide", {.shape = {7, 19}}, c.hyper), c.Sample("tall", {.shape = {19, 7}}, c.hyper),
       c.Sample("square", {.shape = {12, 12}}, c.hyper),
       c.Sample("row", {.shape = {1, 9}}, c.hyper),
       c.Sample("spectral scale, tall", {.shape = {19, 7}}, {.scale = MuonScale::kSpectral}),
       c.Sample("spectral scale, wide", {.shape = {7, 19}}, {.scale = MuonScale::kSpectral}),
       c.Sample("heavy ball", {.shape = {6, 10}}, {.momentum = 0.8, .nesterov = false}),
       c.Sample("one step", {.shape = {6, 10}}, {.steps = 1}),
       c.Sample("several chunks of a matrix", {.shape = {40, 500}}, c.hyper),
       c.Sample("cautious decay", {.shape = {19, 7}}, {.decay = {.cautious = true}}),
       c.Sample("decay at a quarter", {.shape = {7, 19}}, {.decay = {.steps = 4}}), zeros},
      {c.Error(
           "vector", [](auto& t, auto&) { t.value = t.grad = t.states[0] = t.value.View({6}); },
           "tensor 0 must be a matrix, got f32[6] on "),
       c.Error(
           "momentum of 1", [](auto&, auto& hyper) { hyper.momentum = 1; },
           "momentum must be in [0, 1), got 1"),
       c.Error(
           "many steps", [](auto&, auto& hyper) { hyper.steps = 100; },
           "steps must be in [0, 100), got 100"),
       c.Error(
           "dtype of f16", [](auto&, auto& hyper) { hyper.dtype = DType::kF16; },
           "dtype must be f32 or bf16, got f16"),
       c.Error(
           "no eps", [](auto&, auto& hyper) { hyper.eps = 0; }, "eps must be positive, got 0")});
}

const bool registered = RegisterOpCase(Make());

}  // namespace
}  // namespace lockstep
