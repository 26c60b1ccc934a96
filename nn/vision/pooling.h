// Pooling layers, for images [N, C, H, W]. No parameters.
#pragma once

#include "core/module.h"
#include "kernels/avg_pool2d/avg_pool2d.h"
#include "kernels/max_pool2d/max_pool2d.h"

namespace lockstep::nn {

// torch.nn.MaxPool2d (kernels/max_pool2d/max_pool2d.h).
class MaxPool2d : public Layer {
 public:
  explicit MaxPool2d(const MaxPool2dOptions& options) : options_(options) {}
  explicit MaxPool2d(Size2 kernel) : options_{.kernel = kernel} {}

 protected:
  Tensor Forward(const Tensor& x) override { return ops::MaxPool2d(x, options_); }

 private:
  MaxPool2dOptions options_;
};

// torch.nn.AvgPool2d (kernels/avg_pool2d/avg_pool2d.h).
class AvgPool2d : public Layer {
 public:
  explicit AvgPool2d(const AvgPool2dOptions& options) : options_(options) {}
  explicit AvgPool2d(Size2 kernel) : options_{.kernel = kernel} {}

 protected:
  Tensor Forward(const Tensor& x) override { return ops::AvgPool2d(x, options_); }

 private:
  AvgPool2dOptions options_;
};

// torch.nn.AdaptiveAvgPool2d; a size of 1 is the mean of each channel.
class AdaptiveAvgPool2d : public Layer {
 public:
  explicit AdaptiveAvgPool2d(Size2 size) : size_(size) {}

 protected:
  Tensor Forward(const Tensor& x) override { return ops::AdaptiveAvgPool2d(x, size_); }

 private:
  Size2 size_;
};

// torch.nn.Flatten: [N, ...] -> [N, the rest], between the images and the linear layers.
class Flatten : public Layer {
 protected:
  Tensor Forward(const Tensor& x) override;
};

}  // namespace lockstep::nn
