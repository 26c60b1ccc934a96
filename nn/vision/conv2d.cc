#include "nn/vision/conv2d.h"

#include "nn/init.h"

namespace lockstep::nn {

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, Size2 kernel,
               const Conv2dOptions& options)
    : options_{.stride = options.stride,
               .padding = options.padding,
               .dilation = options.dilation,
               .groups = options.groups} {
  LS_CHECK(in_channels > 0 && out_channels > 0 && kernel.h > 0 && kernel.w > 0,
           "Conv2d needs positive sizes, got ", in_channels, " input and ", out_channels,
           " output channels and a kernel of ", kernel);
  LS_CHECK(
      options.groups > 0 && in_channels % options.groups == 0 && out_channels % options.groups == 0,
      "Conv2d: groups must divide the ", in_channels, " input and ", out_channels,
      " output channels, got ", options.groups);
  for (const Size2 size : {options.stride, options.dilation}) {
    LS_CHECK(size.h > 0 && size.w > 0, "Conv2d: stride and dilation must be at least 1, got ",
             options.stride, " and ", options.dilation);
  }
  LS_CHECK(options.padding.h >= 0 && options.padding.w >= 0,
           "Conv2d: padding must be at least 0, got ", options.padding);
  const int64_t channels = in_channels / options.groups;
  const auto init = [&](const Initializer& given) {
    return given ? given : KaimingUniform(channels * kernel.h * kernel.w);
  };
  weight_ = AddParameter("weight", {out_channels, channels, kernel.h, kernel.w},
                         init(options.weight_init), /*decay=*/true);
  if (options.bias) {
    bias_ = AddParameter("bias", {out_channels}, init(options.bias_init), /*decay=*/false);
  }
}

Tensor Conv2d::Forward(const Tensor& x) {
  return ops::Conv2d(x, weight_->value(), bias_ ? bias_->value() : Tensor(), options_);
}

}  // namespace lockstep::nn
