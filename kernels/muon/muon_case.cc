#include <cmath>

#include "kernels/muon/muon.h"
#include "kernels/op_case.h"

namespace lockstep {
namespace {

// A large learning rate, so that the update is most of the result.
constexpr double kLr = 0.5, kDecay = 0.2, kLossScale = 4;

void Begin(StepState& state) { state.Begin(/*step=*/3, kLr, 0, 0, kLossScale); }

// Inputs: value, grad, momentum and, optionally, master.
std::vector<Tensor> Run(const MuonHyper& hyper, std::span<const Tensor> in) {
  StepState state(in[0].device(), 1);
  Begin(state);
  std::vector<Tensor> t;
  for (const Tensor& x : in) t.push_back(x.Detach().Contiguous().Clone());
  const DType wide = in[0].dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  for (size_t i = 2; i < t.size(); ++i) t[i] = t[i].To(wide);
  // Only 16-bit values have a master: the others take its part themselves.
  const bool master = t.size() == 4 && SizeOf(t[0].dtype()) == 2;
  if (t.size() == 4 && !master) t[0] = t[3].To(t[0].dtype());
  const MuonTensors tensors = {.value = t[0],
                               .grad = t[1],
                               .momentum = t[2],
                               .master = master ? t[3] : Tensor(),
                               .weight_decay = kDecay};
  ops::MuonUpdate(std::span(&tensors, 1), hyper, state);
  return {t[0], t[2]};
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
  RefTensor p = in.size() == 4 ? in[3] : in[0], m = in[2];
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
  OpSample s;
  s.name = name;
  s.inputs.assign(master ? 4 : 3, like);
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
  const auto update = [](const Shape& shape, const MuonHyper& hyper) {
    return [=](Device d) {
      const auto zeros = [&] { return Tensor::Zeros(shape, DType::kF32, d); };
      const MuonTensors t = {.value = zeros(), .grad = zeros(), .momentum = zeros(), .master = {}};
      ops::MuonUpdate(std::span(&t, 1), hyper, StepState(d, 1));
    };
  };
  return {
      {"vector", update({3}, {}),
       "muon: tensor 0 must be a matrix, got f32[3] on cpu: give others to another optimizer"},
      {"momentum of 1", update({2, 3}, {.momentum = 1}), "muon: momentum must be in [0, 1), got 1"},
      {"many steps", update({2, 3}, {.steps = 100}), "muon: steps must be in [0, 100), got 100"},
      {"no eps", update({2, 3}, {.eps = 0}), "muon: eps must be positive, got 0"},
      {"no momentum",
       [](Device d) {
         const MuonTensors t = {.value = Tensor::Zeros({2, 3}, DType::kF32, d),
                                .grad = Tensor::Zeros({2, 3}, DType::kF32, d),
                                .momentum = {},
                                .master = {}};
         ops::MuonUpdate(std::span(&t, 1), {}, StepState(d, 1));
       },
       "muon: momentum of tensor 0 must be a contiguous f32[2, 3]"}};
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
