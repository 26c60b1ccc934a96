// What the tests of the page "PyTorch and Lockstep side by side" share.
#pragma once

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep {

inline std::vector<float> Values(const Tensor& x) { return x.To(DType::kF32).ToVector<float>(); }

inline Tensor Matrix() { return Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3}); }

// A problem that small models can learn.
struct Problem {
  Tensor x = ops::Rand({64, 2}, /*seed=*/1);
  Tensor y = ops::Sum(ops::Square(x), {1}, /*keepdim=*/true);
};

inline nn::Sequential& Build(nn::Sequential& model) {
  model.Add<nn::Linear>(2, 16);
  model.Add<nn::Tanh>();
  model.Add<nn::Linear>(16, 1);
  return model;
}

// Keeps what is written to std::cout.
class Output {
 public:
  ~Output() { std::cout.rdbuf(before_); }
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
  std::streambuf* const before_ = std::cout.rdbuf(out_.rdbuf());
};

}  // namespace lockstep
