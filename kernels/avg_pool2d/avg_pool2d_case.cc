#include <cmath>

#include "kernels/avg_pool2d/avg_pool2d.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// The padded image, element by element: a zero that counts, or does not, or nothing at all.
RefTensor Reference(const AvgPool2dOptions& o, const RefTensor& x) {
  const int64_t height = x.shape[2], width = x.shape[3];
  const int64_t sh = o.stride.h ? o.stride.h : o.kernel.h,
                sw = o.stride.w ? o.stride.w : o.kernel.w;
  const auto outputs = [&](int64_t in, int64_t k, int64_t s, int64_t p) {
    const double windows = static_cast<double>(in + 2 * p - k) / static_cast<double>(s);
    int64_t out = static_cast<int64_t>(o.ceil_mode ? std::ceil(windows) : std::floor(windows)) + 1;
    if (o.ceil_mode && (out - 1) * s >= in + p) --out;
    return out;
  };
  RefTensor y({x.shape[0], x.shape[1], outputs(height, o.kernel.h, sh, o.padding.h),
               outputs(width, o.kernel.w, sw, o.padding.w)});
  size_t at = 0;
  for (int64_t plane = 0; plane < x.shape[0] * x.shape[1]; ++plane) {
    for (int64_t p = 0; p < y.shape[2]; ++p) {
      for (int64_t q = 0; q < y.shape[3]; ++q, ++at) {
        double sum = 0, count = 0;
        for (int64_t i = 0; i < o.kernel.h; ++i) {
          for (int64_t j = 0; j < o.kernel.w; ++j) {
            const int64_t row = p * sh - o.padding.h + i, col = q * sw - o.padding.w + j;
            if (row >= height + o.padding.h || col >= width + o.padding.w) continue;
            const bool inside = row >= 0 && row < height && col >= 0 && col < width;
            if (inside) sum += x.data[(plane * height + row) * width + col];
            count += inside || o.count_include_pad;
          }
        }
        y.data[at] = sum / count;
      }
    }
  }
  return y;
}

// An element belongs to a cell if it overlaps it: the image is as long as the grid.
RefTensor AdaptiveReference(Size2 out, const RefTensor& x) {
  const int64_t height = x.shape[2], width = x.shape[3];
  RefTensor y({x.shape[0], x.shape[1], out.h, out.w});
  const auto overlap = [](int64_t i, int64_t in, int64_t o, int64_t cells) {
    return i * cells < (o + 1) * in && (i + 1) * cells > o * in;
  };
  for (size_t at = 0; at < y.data.size(); ++at) {
    const int64_t q = at % out.w, p = at / out.w % out.h, plane = at / (out.w * out.h);
    double sum = 0, count = 0;
    for (int64_t i = 0; i < height; ++i) {
      for (int64_t j = 0; j < width; ++j) {
        if (!overlap(i, height, p, out.h) || !overlap(j, width, q, out.w)) continue;
        sum += x.data[(plane * height + i) * width + j];
        ++count;
      }
    }
    y.data[at] = sum / count;
  }
  return y;
}

OpSample Sample(const std::string& name, const InputSpec& x, const AvgPool2dOptions& o) {
  OpSample s;
  s.name = name;
  s.inputs = {x};
  s.run = [=](TensorSpan in) { return ops::AvgPool2d(in[0], o); };
  s.reference = [=](RefSpan in) { return Reference(o, in[0]); };
  return s;
}

OpSample Adaptive(const std::string& name, const Shape& x, Size2 out) {
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = x}};
  s.run = [=](TensorSpan in) { return ops::AdaptiveAvgPool2d(in[0], out); };
  s.reference = [=](RefSpan in) { return AdaptiveReference(out, in[0]); };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample large = Sample("halves of 56x56", {.shape = {16, 64, 56, 56}}, {});
  large.benchmark = {.flops = 16.0 * 64 * 56 * 56,
                     .elements = 16.0 * 64 * (56 * 56 + 28 * 28),
                     .backward_flops = 16.0 * 64 * 56 * 56,
                     .backward_elements = 16.0 * 64 * (56 * 56 + 28 * 28)};
  const AvgPool2dOptions padded = {.kernel = {3, 2}, .stride = 2, .padding = 1};
  AvgPool2dOptions uncounted = padded, up = padded, up_uncounted = padded;
  uncounted.count_include_pad = up_uncounted.count_include_pad = false;
  up.ceil_mode = up_uncounted.ceil_mode = true;
  return {Sample("empty", {.shape = {0, 3, 4, 4}}, {}),
          Sample("one", {.shape = {1, 1, 1, 1}}, {.kernel = 1}),
          Sample("halves", {.shape = {2, 3, 6, 4}}, {}),
          Sample("remainder", {.shape = {2, 3, 7, 5}}, {}),
          Sample("padded", {.shape = {2, 3, 6, 7}}, padded),
          Sample("padding not counted", {.shape = {2, 3, 6, 7}}, uncounted),
          Sample("rounded up", {.shape = {2, 3, 6, 8}}, up),
          Sample("rounded up, padding not counted", {.shape = {2, 3, 6, 8}}, up_uncounted),
          Sample("overlapping", {.shape = {2, 3, 7, 8}}, {.kernel = 3, .stride = 1, .padding = 1}),
          Sample("gaps", {.shape = {2, 2, 8, 9}}, {.kernel = {1, 2}, .stride = {3, 4}}),
          Sample("several chunks", {.shape = {5, 9, 24, 24}}, {.kernel = 3, .stride = 2}),
          Sample("strided", {.shape = {3, 2, 6, 5}, .non_contiguous = true}, {}),
          Adaptive("mean of planes", {3, 4, 7, 5}, 1),
          Adaptive("uneven cells", {2, 3, 7, 10}, {3, 4}),
          Adaptive("more cells than pixels", {2, 2, 3, 2}, {5, 3}),
          Adaptive("cells of one", {1, 2, 4, 3}, {4, 3}),
          large};
}

std::vector<ErrorSample> Errors() {
  const auto pool = [](const Shape& x, const AvgPool2dOptions& o) {
    return [=](Device d) { ops::AvgPool2d(Tensor::Zeros(x, DType::kF32, d), o); };
  };
  return {{"three dimensions", pool({3, 4, 4}, {}),
           "avg_pool2d: x must be a floating [N, C, H, W], got f32[3, 4, 4]"},
          {"no pixels", pool({1, 1, 4, 0}, {}), "avg_pool2d: images must have pixels"},
          {"padding", pool({1, 1, 4, 4}, {.kernel = 3, .padding = {1, 2}}),
           "avg_pool2d: padding must be at most half of the kernel for the columns, got 2"},
          {"window too large", pool({1, 1, 2, 4}, {.kernel = 3}),
           "avg_pool2d: the window spans 3 rows, the input has 2"},
          {"no cells",
           [](Device d) {
             ops::AdaptiveAvgPool2d(Zeros(d, 1, 1, 2, 2), {0, 1});
           },
           "adaptive_avg_pool2d: there must be at least 1 x 1 cells, got 0 x 1"}};
}

const bool registered =
    RegisterOpCase({.name = "avg_pool2d", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
