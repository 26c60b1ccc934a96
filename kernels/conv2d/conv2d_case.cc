#include "kernels/conv2d/conv2d.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// The definition, one product at a time.
RefTensor Reference(const Conv2dOptions& o, const RefTensor& x, const RefTensor& w,
                    const RefTensor* bias) {
  const int64_t images = x.shape[0], all = x.shape[1], height = x.shape[2], width = x.shape[3];
  const int64_t filters = w.shape[0], channels = w.shape[1], kh = w.shape[2], kw = w.shape[3];
  const auto outputs = [](int64_t in, int64_t k, int64_t s, int64_t p, int64_t d) {
    return (in + 2 * p - d * (k - 1) - 1) / s + 1;
  };
  RefTensor y({images, filters, outputs(height, kh, o.stride.h, o.padding.h, o.dilation.h),
               outputs(width, kw, o.stride.w, o.padding.w, o.dilation.w)});
  size_t at = 0;
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t f = 0; f < filters; ++f) {
      const int64_t first = f / (filters / o.groups) * channels;  // the group's first channel
      for (int64_t p = 0; p < y.shape[2]; ++p) {
        for (int64_t q = 0; q < y.shape[3]; ++q, ++at) {
          double sum = bias ? bias->data[f] : 0;
          for (int64_t c = 0; c < channels; ++c) {
            for (int64_t i = 0; i < kh; ++i) {
              for (int64_t j = 0; j < kw; ++j) {
                const int64_t row = p * o.stride.h - o.padding.h + i * o.dilation.h;
                const int64_t col = q * o.stride.w - o.padding.w + j * o.dilation.w;
                if (row < 0 || row >= height || col < 0 || col >= width) continue;
                sum += x.data[((n * all + first + c) * height + row) * width + col] *
                       w.data[((f * channels + c) * kh + i) * kw + j];
              }
            }
          }
          y.data[at] = sum;
        }
      }
    }
  }
  return y;
}

OpSample Sample(const std::string& name, const Shape& x, const Shape& weight,
                const Conv2dOptions& o = {}, bool bias = true) {
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = x}, {.shape = weight}};
  if (bias) s.inputs.push_back({.shape = {weight[0]}});
  s.run = [=](TensorSpan in) { return ops::Conv2d(in[0], in[1], bias ? in[2] : Tensor(), o); };
  s.reference = [=](RefSpan in) { return Reference(o, in[0], in[1], bias ? &in[2] : nullptr); };
  return s;
}

// A sample with FLOPs and bytes: a convolution with stride 1 that keeps the images' size.
OpSample Large(const std::string& name, int64_t n, int64_t c, int64_t size, int64_t o, int64_t k) {
  OpSample s = Sample(name, {n, c, size, size}, {o, c, k, k}, {.padding = (k - 1) / 2}, false);
  const double pixels = static_cast<double>(n * size * size);
  s.benchmark = {
      .flops = 2 * pixels * static_cast<double>(o * c * k * k),
      .elements = pixels * static_cast<double>(c + o) + static_cast<double>(o * c * k * k)};
  return s;
}

std::vector<OpSample> Samples() {
  OpSample strided = Sample("strided", {2, 3, 5, 4}, {4, 3, 3, 2}, {.padding = 1});
  strided.inputs[0].non_contiguous = strided.inputs[1].non_contiguous = true;
  return {
      Sample("empty", {0, 2, 4, 4}, {3, 2, 3, 3}),
      Sample("no channels", {2, 0, 3, 3}, {2, 0, 2, 2}), Sample("one", {1, 1, 1, 1}, {1, 1, 1, 1}),
      Sample("odd", {3, 5, 9, 7}, {6, 5, 3, 3}, {.padding = 1}),
      Sample("no bias", {2, 3, 6, 5}, {4, 3, 3, 3}, {}, false),
      Sample("stride", {2, 3, 9, 10}, {4, 3, 3, 3}, {.stride = 2, .padding = 1}),
      Sample("stride beyond the kernel", {2, 2, 9, 8}, {3, 2, 2, 1}, {.stride = {4, 3}}),
      Sample("uneven", {2, 3, 8, 11}, {4, 3, 2, 5},
             {.stride = {1, 2}, .padding = {2, 0}, .dilation = {3, 1}}),
      Sample("dilation", {2, 2, 9, 9}, {3, 2, 3, 3}, {.padding = 2, .dilation = 2}),
      Sample("padding beyond the image", {2, 2, 2, 1}, {3, 2, 3, 3}, {.padding = {4, 3}}),
      Sample("groups", {3, 6, 5, 6}, {4, 3, 3, 3}, {.padding = 1, .groups = 2}),
      Sample("depthwise", {2, 5, 6, 6}, {10, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 5}),
      Sample("pointwise", {3, 7, 4, 5}, {6, 7, 1, 1}),
      Sample("pointwise with stride", {2, 4, 5, 5}, {3, 4, 1, 1}, {.stride = 2}),
      // More images than blocks of the weight's gradient, and products of several tiles.
      Sample("many images", {19, 2, 6, 6}, {3, 2, 3, 3}, {.padding = 1}),
      Sample("several tiles", {1, 4, 40, 40}, {40, 4, 3, 3}, {.padding = 1}), strided,
      Large("resnet 56x56", 8, 64, 56, 64, 3), Large("resnet 14x14", 16, 256, 14, 256, 3),
      Large("pointwise 56x56", 8, 64, 56, 256, 1)};
}

std::vector<ErrorSample> Errors() {
  const auto conv = [](const Shape& x, const Shape& w, const Conv2dOptions& o = {}) {
    return [=](Device d) {
      ops::Conv2d(Tensor::Zeros(x, DType::kF32, d), Tensor::Zeros(w, DType::kF32, d), {}, o);
    };
  };
  return {{"one image", conv({3, 4, 4}, {2, 3, 3, 3}),
           "conv2d: x must be a floating [N, C, H, W], got f32[3, 4, 4]"},
          {"channels", conv({1, 3, 4, 4}, {2, 4, 3, 3}),
           "conv2d: weight must be [O, 3, kh, kw] for x of shape [1, 3, 4, 4] in 1 group, got "
           "f32[2, 4, 3, 3]"},
          {"groups and channels", conv({1, 3, 4, 4}, {2, 3, 3, 3}, {.groups = 2}),
           "conv2d: groups must divide the 3 channels of x, got 2"},
          {"groups and filters", conv({1, 4, 4, 4}, {3, 2, 3, 3}, {.groups = 2}),
           "conv2d: groups must divide the 3 filters of the weight, got 2"},
          {"window too large", conv({1, 1, 4, 2}, {1, 1, 3, 3}),
           "conv2d: the window spans 3 columns, the input has 2 and 0 of padding on either side"},
          {"no window", conv({1, 1, 4, 4}, {1, 1, 0, 3}),
           "conv2d: for the rows, kernel, stride and dilation must be at least 1"},
          {"no stride", conv({1, 1, 4, 4}, {1, 1, 3, 3}, {.stride = {1, 0}}),
           "conv2d: for the columns, kernel, stride and dilation must be at least 1"},
          {"huge padding", conv({1, 1, 4, 4}, {1, 1, 3, 3}, {.padding = int64_t{1} << 62}),
           "all below 2^31"},
          {"bias",
           [](Device d) { ops::Conv2d(Zeros(d, 1, 1, 3, 3), Zeros(d, 2, 1, 3, 3), Zeros(d, 3)); },
           "conv2d: bias must be f32[2]"},
          {"dtypes",
           [](Device d) { ops::Conv2d(Zeros(DType::kBF16, d, 1, 1, 3, 3), Zeros(d, 2, 1, 3, 3)); },
           "conv2d: x and weight must have the same dtype and device"}};
}

const bool registered = RegisterOpCase({.name = "conv2d", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
