#include <cmath>
#include <limits>

#include "kernels/max_pool2d/max_pool2d.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

RefTensor Reference(const MaxPool2dOptions& o, const RefTensor& x) {
  const int64_t height = x.shape[2], width = x.shape[3];
  const auto outputs = [&](int64_t in, int64_t k, int64_t s, int64_t p, int64_t d) {
    const double windows =
        static_cast<double>(in + 2 * p - d * (k - 1) - 1) / static_cast<double>(s);
    int64_t out = static_cast<int64_t>(o.ceil_mode ? std::ceil(windows) : std::floor(windows)) + 1;
    if (o.ceil_mode && (out - 1) * s >= in + p) --out;
    return out;
  };
  const int64_t sh = o.stride.h ? o.stride.h : o.kernel.h,
                sw = o.stride.w ? o.stride.w : o.kernel.w;
  RefTensor y({x.shape[0], x.shape[1], outputs(height, o.kernel.h, sh, o.padding.h, o.dilation.h),
               outputs(width, o.kernel.w, sw, o.padding.w, o.dilation.w)});
  size_t at = 0;
  for (int64_t plane = 0; plane < x.shape[0] * x.shape[1]; ++plane) {
    for (int64_t p = 0; p < y.shape[2]; ++p) {
      for (int64_t q = 0; q < y.shape[3]; ++q, ++at) {
        double most = -std::numeric_limits<double>::infinity();
        for (int64_t i = 0; i < o.kernel.h; ++i) {
          for (int64_t j = 0; j < o.kernel.w; ++j) {
            const int64_t row = p * sh - o.padding.h + i * o.dilation.h;
            const int64_t col = q * sw - o.padding.w + j * o.dilation.w;
            if (row < 0 || row >= height || col < 0 || col >= width) continue;
            most = std::max(most, x.data[(plane * height + row) * width + col]);
          }
        }
        y.data[at] = most;
      }
    }
  }
  return y;
}

OpSample Sample(const std::string& name, const InputSpec& x, const MaxPool2dOptions& o) {
  OpSample s;
  s.name = name;
  s.inputs = {x};
  s.run = [=](TensorSpan in) { return ops::MaxPool2d(in[0], o); };
  s.reference = [=](RefSpan in) { return Reference(o, in[0]); };
  s.kinks = true;
  return s;
}

std::vector<OpSample> Samples() {
  OpSample large = Sample("resnet stem", {.shape = {16, 64, 112, 112}},
                          {.kernel = 3, .stride = 2, .padding = 1});
  large.benchmark = {.flops = 16.0 * 64 * 56 * 56 * 9,
                     .elements = 16.0 * 64 * (112 * 112 + 56 * 56),
                     .backward_flops = 16.0 * 64 * 56 * 56,
                     .backward_elements = 16.0 * 64 * (112 * 112 + 2 * 56 * 56)};
  return {Sample("empty", {.shape = {0, 3, 4, 4}}, {}),
          Sample("one", {.shape = {1, 1, 1, 1}}, {.kernel = 1}),
          Sample("halves", {.shape = {2, 3, 6, 4}}, {}),
          Sample("remainder", {.shape = {2, 3, 7, 5}}, {}),
          Sample("rounded up", {.shape = {2, 2, 7, 5}}, {.kernel = {3, 2}, .ceil_mode = true}),
          // ceil_mode would add a window that begins in the padding.
          Sample("rounded up, padded", {.shape = {1, 2, 4, 6}},
                 {.kernel = 2, .stride = 3, .padding = 1, .ceil_mode = true}),
          Sample("overlapping", {.shape = {2, 3, 7, 8}}, {.kernel = 3, .stride = 1, .padding = 1}),
          Sample("below zero", {.shape = {1, 2, 5, 5}, .low = -2, .high = -1},
                 {.kernel = 3, .stride = 2, .padding = 1}),
          Sample("gaps", {.shape = {2, 2, 8, 9}}, {.kernel = {1, 2}, .stride = {3, 4}}),
          Sample("dilation", {.shape = {2, 2, 9, 8}},
                 {.kernel = {3, 2}, .stride = 1, .padding = 1, .dilation = {2, 3}}),
          Sample("several chunks", {.shape = {5, 9, 24, 24}}, {.kernel = 3, .stride = 2}),
          Sample("strided", {.shape = {3, 2, 6, 5}, .non_contiguous = true}, {}), large};
}

std::vector<ErrorSample> Errors() {
  const auto pool = [](const Shape& x, const MaxPool2dOptions& o) {
    return [=](Device d) { ops::MaxPool2d(Tensor::Zeros(x, DType::kF32, d), o); };
  };
  return {{"three dimensions", pool({3, 4, 4}, {}),
           "max_pool2d: x must be a floating [N, C, H, W], got f32[3, 4, 4]"},
          {"no pixels", pool({1, 1, 0, 4}, {}),
           "max_pool2d: images must have 1 to 2^31 - 1 pixels, got 0 x 4"},
          {"padding", pool({1, 1, 4, 4}, {.kernel = 3, .padding = {1, 2}}),
           "max_pool2d: padding must be at most half of the kernel for the columns, got 2 for a "
           "kernel of 3"},
          {"window too large", pool({1, 1, 2, 4}, {.kernel = 3}),
           "max_pool2d: the window spans 3 rows, the input has 2"},
          {"negative stride", pool({1, 1, 4, 4}, {.stride = -1}),
           "max_pool2d: for the rows, kernel, stride and dilation must be at least 1"},
          {"nothing but padding",
           pool({1, 1, 2, 2}, {.kernel = 2, .stride = 1, .padding = 1, .dilation = 3}),
           "max_pool2d: window 0 of the rows (kernel 2, stride 1, padding 1, dilation 3) holds "
           "nothing but padding"}};
}

const bool registered =
    RegisterOpCase({.name = "max_pool2d", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
