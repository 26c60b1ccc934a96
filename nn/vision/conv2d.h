// A convolutional layer.
#pragma once

#include <memory>

#include "core/module.h"
#include "kernels/conv2d/conv2d.h"

namespace lockstep::nn {

struct Conv2dOptions {
  Size2 stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
  Initializer weight_init{};  // where empty: KaimingUniform(in_channels / groups * kh * kw),
  Initializer bias_init{};    // as torch.nn.Conv2d has it for both
};

// torch.nn.Conv2d (kernels/conv2d/conv2d.h): x [N, in_channels, H, W] -> [N, out_channels, H', W'].
// Parameters: weight [out_channels, in_channels / groups, kh, kw] (decays), bias [out_channels]
// (does not). Throws ArgumentError for sizes below 1, and unless groups divides both numbers of
// channels.
class Conv2d : public Layer {
 public:
  Conv2d(int64_t in_channels, int64_t out_channels, Size2 kernel,
         const Conv2dOptions& options = {});

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  lockstep::Conv2dOptions options_;
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace lockstep::nn
