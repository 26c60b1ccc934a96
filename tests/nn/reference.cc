#include "tests/nn/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/autograd/engine.h"

namespace lockstep::test {

Matrix ToMatrix(const Tensor& x) {
  Matrix m;
  m.cols = x.ndim() ? x.dim(-1) : 1;
  m.rows = m.cols ? x.numel() / m.cols : 0;
  m.data = x.Detach().To(DType::kF64).ToVector<double>();
  return m;
}

Matrix ParameterOf(const Module& module, const std::string& path) {
  for (const auto& [name, parameter] : module.NamedParameters()) {
    if (name == path) return ToMatrix(parameter->value());
  }
  ADD_FAILURE() << "no parameter " << path;
  return {};
}

std::vector<std::string> Describe(const Module& module) {
  std::vector<std::string> out;
  for (const auto& [name, p] : module.NamedParameters()) {
    out.push_back(StrCat(name, " ", p->logical_shape(), p->decay() ? " decays" : ""));
  }
  for (const auto& [name, buffer] : module.NamedBuffers()) {
    out.push_back(StrCat(name, " ", buffer.dtype(), buffer.shape(), " buffer"));
  }
  return out;
}

Matrix LinearReference(const Matrix& x, const Matrix& w, const Matrix& b) {
  Matrix y{x.rows, w.rows, std::vector<double>(static_cast<size_t>(x.rows * w.rows))};
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t c = 0; c < y.cols; ++c) {
      double sum = b.data.empty() ? 0 : b.data[static_cast<size_t>(c)];
      for (int64_t k = 0; k < x.cols; ++k) sum += x(r, k) * w(c, k);
      y(r, c) = sum;
    }
  }
  return y;
}

Matrix LayerNormReference(const Matrix& x, const Matrix& w, const Matrix& b, double eps) {
  Matrix y = x;
  for (int64_t r = 0; r < x.rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < x.cols; ++c) mean += x(r, c) / static_cast<double>(x.cols);
    for (int64_t c = 0; c < x.cols; ++c) {
      variance += (x(r, c) - mean) * (x(r, c) - mean) / static_cast<double>(x.cols);
    }
    for (int64_t c = 0; c < x.cols; ++c) {
      y(r, c) = (x(r, c) - mean) / std::sqrt(variance + eps) * w.data[static_cast<size_t>(c)] +
                (b.data.empty() ? 0 : b.data[static_cast<size_t>(c)]);
    }
  }
  return y;
}

Matrix GeluReference(const Matrix& x) {
  Matrix y = x;
  for (double& v : y.data) {
    v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  }
  return y;
}

Matrix AddReference(const Matrix& a, const Matrix& b) {
  Matrix y = a;
  for (size_t i = 0; i < y.data.size(); ++i) y.data[i] += b.data[i];
  return y;
}

Matrix CausalAttentionReference(const Matrix& qkv, int64_t batches, int64_t heads) {
  const int64_t t = qkv.rows / batches, c = qkv.cols / 3, d = c / heads;
  Matrix y{qkv.rows, c, std::vector<double>(static_cast<size_t>(qkv.rows * c))};
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < t; ++i) {
        std::vector<double> weight(static_cast<size_t>(i + 1));
        double sum = 0;
        for (int64_t j = 0; j <= i; ++j) {
          double dot = 0;
          for (int64_t k = 0; k < d; ++k) {
            dot += qkv(b * t + i, h * d + k) * qkv(b * t + j, c + h * d + k);
          }
          weight[j] = std::exp(dot / std::sqrt(static_cast<double>(d)));
          sum += weight[j];
        }
        for (int64_t j = 0; j <= i; ++j) {
          for (int64_t k = 0; k < d; ++k) {
            y(b * t + i, h * d + k) += weight[j] / sum * qkv(b * t + j, 2 * c + h * d + k);
          }
        }
      }
    }
  }
  return y;
}

double Difference(const Matrix& got, const Matrix& want) {
  if (got.rows != want.rows || got.cols != want.cols) {
    return std::numeric_limits<double>::infinity();
  }
  double worst = 0;
  for (size_t i = 0; i < got.data.size(); ++i) {
    const double d = std::abs(got.data[i] - want.data[i]) / (1 + std::abs(want.data[i]));
    if (!(d <= worst)) worst = std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
  }
  return worst;
}

Tensor RandomTensor(const Shape& shape, unsigned seed, DType dtype, double low, double high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (double& v : values) v = uniform(random);
  return Tensor::FromVector(values, shape).To(dtype);
}

void Randomize(Module& module, unsigned seed, double low, double high) {
  for (const auto& p : module.Parameters()) {
    const Tensor value = p->value().Detach();
    value.CopyFrom(RandomTensor(value.shape(), seed++, DType::kF64, low, high));
  }
}

namespace {

// The derivative of the loss along `direction` from x, by differences.
double Slope(const Tensor& x, const std::vector<double>& direction,
             const std::function<Tensor()>& loss) {
  constexpr double kStep = 1e-3;  // the error of the formula and rounding are both near 1e-12
  auto* data = x.data<double>();
  const std::vector<double> start(data, data + x.numel());
  const auto at = [&](double step) {
    for (size_t i = 0; i < start.size(); ++i) data[i] = start[i] + step * direction[i];
    const double value = loss().Item();
    std::copy(start.begin(), start.end(), data);
    return value;
  };
  return (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
}

}  // namespace

void CheckGradients(const std::vector<std::pair<std::string, Tensor>>& tensors,
                    const std::function<Tensor()>& loss, int directions, int elements) {
  for (const auto& [name, x] : tensors) x.ZeroGrad();
  Backward(loss());
  std::mt19937 random(17);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (const auto& [name, x] : tensors) {
    ASSERT_TRUE(x.grad().defined()) << name << " has no gradient";
    const std::vector<double> grad = x.grad().ToVector<double>();
    for (int k = 0; k < directions + elements; ++k) {
      std::vector<double> direction(grad.size());
      if (k < directions) {
        for (double& d : direction) d = uniform(random);
      } else {
        direction[random() % direction.size()] = 1;
      }
      double want = 0, scale = 1;
      for (size_t i = 0; i < grad.size(); ++i) {
        want += grad[i] * direction[i];
        scale += std::abs(grad[i] * direction[i]);
      }
      const double got = Slope(x, direction, loss);
      EXPECT_LE(std::abs(got - want), 1e-9 * scale)
          << name << (k < directions ? ", direction " : ", element ") << k << ": backward says "
          << want << ", differences say " << got;
    }
  }
}

std::vector<std::pair<std::string, Tensor>> ParametersToCheck(const Module& module) {
  std::vector<std::pair<std::string, Tensor>> out;
  for (const auto& [name, p] : module.NamedParameters()) out.emplace_back(name, p->value());
  return out;
}

namespace {

class ProjectNode : public Node {
 public:
  explicit ProjectNode(const Tensor& weights) : Node("test_project"), weights_(weights) {}
  void Backward(Gradients& grads) override {
    const Tensor dy = weights_.Clone();
    const double scale = grads[0].Item();
    for (int64_t i = 0; i < dy.numel(); ++i) dy.data<double>()[i] *= scale;
    grads.Put(0, dy.To(weights_.dtype()));
  }

 private:
  Tensor weights_;
};

}  // namespace

Tensor Project(const Tensor& y, unsigned seed) {
  LS_CHECK(y.dtype() == DType::kF64, "Project takes f64");
  const Tensor weights = RandomTensor(y.shape(), seed);
  const std::vector<double> values = y.ToVector<double>(), w = weights.ToVector<double>();
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i] * w[i];
  Tensor loss = Tensor::Full({}, sum, DType::kF64);
  if (NeedsGrad({&y})) Record(std::make_shared<ProjectNode>(weights), {&y}, {&loss});
  return loss;
}

}  // namespace lockstep::test
