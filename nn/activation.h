// Elementwise functions as layers, for Sequential and the like. No parameters; the formulas are
// those of the functions of the same names in lockstep::ops.
#pragma once

#include "core/module.h"

namespace lockstep::nn {

class Gelu : public Layer {  // the tanh form
 protected:
  Tensor Forward(const Tensor& x) override;
};

class Relu : public Layer {
 protected:
  Tensor Forward(const Tensor& x) override;
};

class Tanh : public Layer {
 protected:
  Tensor Forward(const Tensor& x) override;
};

class Sigmoid : public Layer {
 protected:
  Tensor Forward(const Tensor& x) override;
};

}  // namespace lockstep::nn
