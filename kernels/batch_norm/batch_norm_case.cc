#include <cmath>

#include "kernels/batch_norm/batch_norm.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

struct Kind {
  bool training = true;
  bool affine = true;
  bool running = true;  // always in evaluation
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;
  int64_t batches = 4;  // seen before
};

// Inputs: x; weight and bias; running mean and var.
struct Inputs {
  size_t weight, mean;
  explicit Inputs(const Kind& k) : weight(1), mean(k.affine ? 3 : 1) {}
};

std::vector<Tensor> Run(const Kind& k, TensorSpan in) {
  const Inputs at(k);
  BatchNormRunning running;
  if (k.running) {
    const DType wide = AccumulationDType(in[0].dtype());
    running.mean = in[at.mean].Detach().Clone().To(wide);
    running.var = in[at.mean + 1].Detach().Clone().To(wide);
    running.batches = Tensor::Full({}, static_cast<double>(k.batches), DType::kI64, in[0].device());
  }
  const Tensor y = ops::BatchNorm(
      in[0], k.affine ? in[at.weight] : Tensor(), k.affine ? in[at.weight + 1] : Tensor(), running,
      {.training = k.training, .eps = k.eps, .momentum = k.momentum, .exchange = nullptr});
  if (!k.running) return {y};
  return {y, running.mean, running.var, running.batches};
}

std::vector<RefTensor> Reference(const Kind& k, RefSpan in) {
  const Inputs at(k);
  const RefTensor& x = in[0];
  const int64_t n = x.shape[0], c = x.shape[1];
  const int64_t size = n * c == 0 ? 0 : static_cast<int64_t>(x.data.size()) / (n * c);
  RefTensor y(x.shape), mean({c}), var({c}), batches{Shape()};
  batches.data[0] = static_cast<double>(k.batches + k.training);
  const double count = static_cast<double>(n * size);
  const double factor = k.momentum.value_or(1 / batches.data[0]);
  for (int64_t ch = 0; ch < c; ++ch) {
    const auto index = [&](int64_t i) { return (i / size * c + ch) * size + i % size; };
    double m = 0, v = 0;
    for (int64_t i = 0; i < n * size; ++i) m += x.data[index(i)] / count;
    for (int64_t i = 0; i < n * size; ++i) v += std::pow(x.data[index(i)] - m, 2) / count;
    if (k.running) {
      mean.data[ch] = in[at.mean].data[ch];
      var.data[ch] = in[at.mean + 1].data[ch];
    }
    if (!k.training) {
      m = mean.data[ch];
      v = var.data[ch];
    } else {
      mean.data[ch] = (1 - factor) * mean.data[ch] + factor * m;
      var.data[ch] = (1 - factor) * var.data[ch] + factor * v * count / (count - 1);
    }
    for (int64_t i = 0; i < n * size; ++i) {
      const double hat = (x.data[index(i)] - m) / std::sqrt(v + k.eps);
      y.data[index(i)] = k.affine ? hat * in[at.weight].data[ch] + in[at.weight + 1].data[ch] : hat;
    }
  }
  if (!k.running) return {y};
  return {y, mean, var, batches};
}

OpSample Sample(const std::string& name, const InputSpec& x, const Kind& k = {}) {
  const int64_t c = x.shape[1];
  OpSample s;
  s.name = name;
  s.inputs = {x};
  if (k.affine) {
    s.inputs.push_back({.shape = {c}, .low = 0.5, .high = 1.5});
    s.inputs.push_back({.shape = {c}});
  }
  if (k.running) {
    s.inputs.push_back({.shape = {c}, .differentiable = false});
    s.inputs.push_back({.shape = {c}, .low = 0.5, .high = 2, .differentiable = false});
  }
  s.run = [k](TensorSpan in) { return Run(k, in); };
  s.reference = [k](RefSpan in) { return Reference(k, in); };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample mixed = Sample("weights of f32", {.shape = {4, 6, 3, 3}});
  for (size_t i : {1, 2}) mixed.inputs[i].dtype = DType::kF32;
  OpSample large = Sample("resnet", {.shape = {16, 256, 28, 28}});
  large.benchmark = {.flops = 16.0 * 256 * 28 * 28 * 8, .elements = 16.0 * 256 * 28 * 28 * 2};
  return {Sample("empty in evaluation", {.shape = {0, 5, 2, 2}}, {.training = false}),
          Sample("no channels", {.shape = {3, 0, 2}}),
          // With a small eps the gradient of two values is 0 except for rounding.
          Sample("two values", {.shape = {2, 1}}, {.eps = 0.5}),
          Sample("three values", {.shape = {3, 1}}),
          Sample("odd", {.shape = {3, 5, 7, 3}, .low = -2, .high = 2}),
          Sample("rows", {.shape = {37, 6}, .low = -2, .high = 2}),
          Sample("sequences", {.shape = {5, 4, 9}}), Sample("volumes", {.shape = {2, 3, 2, 3, 4}}),
          Sample("one sample", {.shape = {1, 3, 4, 5}}),
          Sample("without weights", {.shape = {4, 3, 2, 2}}, {.affine = false}),
          Sample("without running statistics", {.shape = {4, 3, 2, 2}}, {.running = false}),
          Sample("mean over all batches", {.shape = {4, 3, 2, 2}}, {.momentum = {}}),
          Sample("first of all batches", {.shape = {4, 3, 2, 2}}, {.momentum = {}, .batches = 0}),
          Sample("momentum of zero", {.shape = {4, 3, 2, 2}}, {.momentum = 0.0}),
          Sample("large eps and momentum", {.shape = {4, 3, 5}}, {.eps = 0.5, .momentum = 0.75}),
          Sample("evaluation", {.shape = {3, 5, 4, 4}, .low = -2, .high = 2}, {.training = false}),
          Sample("evaluation without weights", {.shape = {3, 5, 4}},
                 {.training = false, .affine = false}),
          Sample("far from zero", {.shape = {16, 3, 4, 4}, .low = 99, .high = 101}),
          Sample("several chunks", {.shape = {5, 40, 24, 24}}),
          Sample("strided", {.shape = {6, 4, 5}, .non_contiguous = true}), mixed, large};
}

std::vector<ErrorSample> Errors() {
  const auto norm = [](const Shape& x, const BatchNormOptions& o, int64_t running = 3,
                       DType dtype = DType::kF32) {
    return [=](Device d) {
      const auto tensor = [&] { return running < 0 ? Tensor() : Zeros(d, running); };
      ops::BatchNorm(Tensor::Zeros(x, dtype, d), {}, {}, {tensor(), tensor(), {}}, o);
    };
  };
  const BatchNormOptions training = {
      .training = true, .eps = 1e-5, .momentum = 0.1, .exchange = nullptr};
  BatchNormOptions negative_eps = training, momentum = training, average = training;
  negative_eps.eps = -1;
  momentum.momentum = 1.5;
  average.momentum = {};
  return {
      {"integers", norm({2, 3}, training, 3, DType::kI32),
       "batch_norm: x must be a floating [N, C, ...], got i32[2, 3]"},
      {"one dimension", norm({3}, training),
       "batch_norm: x must be a floating [N, C, ...], got f32[3]"},
      {"running statistics of another size", norm({2, 3}, training, 4),
       "batch_norm: running mean must be a contiguous f32[3] on"},
      {"evaluation without running statistics", norm({2, 3}, {}, -1),
       "batch_norm: running mean must be a contiguous f32[3]"},
      {"a single value", norm({1, 3, 1, 1}, training),
       "batch_norm: training needs more than one value per channel, got x of shape "
       "[1, 3, 1, 1]: use a larger batch or evaluation mode"},
      {"empty batch", norm({0, 3, 2, 2}, training),
       "batch_norm: training needs more than one value per channel"},
      {"negative eps", norm({2, 3}, negative_eps), "batch_norm: eps must not be negative, got -1"},
      {"momentum", norm({2, 3}, momentum), "batch_norm: momentum must be in [0, 1], got 1.5"},
      {"no count", norm({2, 3}, average), "pass running.batches"},
      {"weight",
       [](Device d) {
         ops::BatchNorm(Zeros(d, 2, 3), Zeros(d, 2), {}, {},
                        {.training = true, .eps = 0, .momentum = 0.1, .exchange = nullptr});
       },
       "batch_norm: weight must be f32[3]"}};
}

const bool registered =
    RegisterOpCase({.name = "batch_norm", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
