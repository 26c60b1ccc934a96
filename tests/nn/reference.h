// The layers in plain loops of doubles, and finite differences: what the tests of nn compare with.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/module.h"

namespace lockstep::test {

// A matrix of doubles, row-major; tensors of more dimensions count all but the last as rows.
struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> data;
  double& operator()(int64_t r, int64_t c) { return data[static_cast<size_t>(r * cols + c)]; }
  double operator()(int64_t r, int64_t c) const { return data[static_cast<size_t>(r * cols + c)]; }
};

// Any floating tensor.
Matrix ToMatrix(const Tensor& x);
// The parameter with this path; fails the test if there is none.
Matrix ParameterOf(const Module& module, const std::string& path);

// "fc.weight [5, 3] decays", "running_mean f32[3] buffer": the parameters, then the buffers.
std::vector<std::string> Describe(const Module& module);

// y = x w^T + b; b may be empty.
Matrix LinearReference(const Matrix& x, const Matrix& w, const Matrix& b);
Matrix LayerNormReference(const Matrix& x, const Matrix& w, const Matrix& b, double eps);
Matrix GeluReference(const Matrix& x);
Matrix AddReference(const Matrix& a, const Matrix& b);
// qkv: [batches * t, 3 c].
Matrix CausalAttentionReference(const Matrix& qkv, int64_t batches, int64_t heads);

// max |got - want| / (1 + |want|); infinity where the sizes differ or anything is NaN.
double Difference(const Matrix& got, const Matrix& want);

// Uniform numbers in [low, high) from a seed.
Tensor RandomTensor(const Shape& shape, unsigned seed, DType dtype = DType::kF64, double low = -1,
                    double high = 1);
// Overwrites all parameters with random numbers: also those that initialisers set to 0 or 1.
void Randomize(Module& module, unsigned seed, double low = -1, double high = 1);

// Compares the gradient of a scalar function of f64 tensors with central differences of fourth
// order: for each tensor along `directions` random directions and in `elements` sampled elements.
// `loss` computes the function from the tensors' current values; the tensors collect gradients.
// Reports failures by the tensor's name.
void CheckGradients(const std::vector<std::pair<std::string, Tensor>>& tensors,
                    const std::function<Tensor()>& loss, int directions = 3, int elements = 5);
// The parameters of a module, for CheckGradients.
std::vector<std::pair<std::string, Tensor>> ParametersToCheck(const Module& module);

// <y, fixed random numbers>, differentiable: turns any output into a scalar.
Tensor Project(const Tensor& y, unsigned seed = 99);

}  // namespace lockstep::test
