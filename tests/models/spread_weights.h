// Random weights whose logits are spread like trained ones.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "models/gpt/gpt.h"

namespace lockstep::test {

inline void SpreadWeights(models::Gpt& model) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal(0, 1);
  for (const auto& p : model.Parameters()) {
    const Tensor value = p->value().Detach();
    const bool matrix = value.ndim() == 2;
    const double std = matrix ? 1.2 / std::sqrt(static_cast<double>(value.dim(1))) : 0.3;
    std::vector<double> values(static_cast<size_t>(value.numel()));
    for (double& x : values) x = (matrix ? 0 : 1) + std * normal(random);
    value.CopyFrom(Tensor::FromVector(values, value.shape()));
  }
}

}  // namespace lockstep::test
