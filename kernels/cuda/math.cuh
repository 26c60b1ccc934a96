// Nonlinearities and their derivatives in f32, with the formulas of kernels/cpu/math.h.
#pragma once

#include <cuda_runtime.h>

namespace lockstep::cuda {

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// x sigmoid(x) and its derivative.
__device__ inline float Silu(float x) { return x / (1.0f + expf(-x)); }
__device__ inline float SiluDerivative(float x) {
  const float s = Sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}

// GELU in its tanh form (ops::Gelu) and its derivative.
__device__ inline float Gelu(float x) {
  constexpr float kScale = 0.79788456080286535588f, kCubic = 0.044715f;  // sqrt(2 / pi)
  return 0.5f * x * (1.0f + tanhf(kScale * (x + kCubic * x * x * x)));
}
__device__ inline float GeluDerivative(float x) {
  constexpr float kScale = 0.79788456080286535588f, kCubic = 0.044715f;
  const float t = tanhf(kScale * (x + kCubic * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * kScale * (1.0f + 3.0f * kCubic * x * x);
}

// GELU as defined, x Phi(x) with the normal distribution's Phi, and its derivative.
__device__ inline float GeluExact(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
}
__device__ inline float GeluExactDerivative(float x) {
  constexpr float kDensity = 0.39894228040143267794f;  // 1 / sqrt(2 pi)
  return 0.5f * (1.0f + erff(x * 0.70710678118654752440f)) + x * kDensity * expf(-0.5f * x * x);
}

}  // namespace lockstep::cuda
