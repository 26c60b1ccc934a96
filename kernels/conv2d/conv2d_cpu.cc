
#include "kernels/conv2d/conv2d.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/scratch.h"

// A convolution is a matrix product per image and group: the filters [filters, taps] times the
// image's patches [taps, out_pixels]. Patches are laid out in a thread's own scratch, and rebuilt
// in backward. GEMMs have the same bits on one thread or several, so images run side by side where
// there are enough of them, and otherwise the threads share each product.

namespace lockstep::cpu {
namespace {

// Whether every patch is a pixel: then the image is its own matrix of patches.
bool IsPointwise(const Conv2dShape& s) {
  const auto trivial = [](const WindowAxis& a) {
    return a.kernel == 1 && a.stride == 1 && a.padding == 0;
  };
  return trivial(s.rows) && trivial(s.columns);
}

// One image of one group, in x and y.
struct Place {
  int64_t image, group;
  int64_t in, out, weight;  // element offsets in x, y and the weight

  Place(const Conv2dShape& s, int64_t at) : image(at / s.groups), group(at % s.groups) {
    in = at * s.channels * s.in_pixels();
    out = at * s.filters * s.out_pixels();
    weight = group * s.filters * s.taps();
  }
};

// Calls f(begin, end) for ranges of the images and groups: on several threads, unless there are so
// few that the products are better shared.
template <class F>
void ForEachPlace(const Conv2dShape& s, const F& f) {
  constexpr int64_t kEnough = 8;
  const int64_t n = s.images * s.groups;
  ParallelFor(n, n >= kEnough ? 1 : n, f);
}

// A tap's row of the patch matrix: for each output pixel the input pixel under the tap, or 0.
template <class T>
void TapRow(const Conv2dShape& s, const T* plane, int64_t i, int64_t j, T* row) {
  const WindowAxis &h = s.rows, &w = s.columns;
  const int64_t top = h.FirstWithTap(i), bottom = std::max(top, h.LastWithTap(i));
  const int64_t left = w.FirstWithTap(j), right = std::max(left, w.LastWithTap(j));
  std::fill(row, row + top * w.out, T());
  for (int64_t p = top; p < bottom; ++p) {
    T* to = row + p * w.out;
    const T* from = plane + (h.Begin(p) + i * h.dilation) * w.in;
    const int64_t first = w.Begin(left) + j * w.dilation;  // the input column of output `left`
    std::fill(to, to + left, T());
    if (w.stride == 1) {
      std::copy(from + first, from + first + (right - left), to + left);
    } else {
      for (int64_t q = left; q < right; ++q) to[q] = from[first + (q - left) * w.stride];
    }
    std::fill(to + right, to + w.out, T());
  }
  std::fill(row + bottom * w.out, row + h.out * w.out, T());
}

// The patches of an image of a group, [taps, out_pixels].
template <class T>
const T* Patches(const Conv2dShape& s, const T* image, Scratch<T>& scratch) {
  if (IsPointwise(s)) return image;
  T* const patches = scratch.Get(s.taps() * s.out_pixels());
  const int64_t window = s.rows.kernel * s.columns.kernel;
  ParallelForEach(s.taps(), GrainOf(s.out_pixels()), [&](int64_t tap) {
    TapRow(s, image + tap / window * s.in_pixels(), tap % window / s.columns.kernel,
           tap % s.columns.kernel, patches + tap * s.out_pixels());
  });
  return patches;
}

void Conv2dForwardCpu(Stream, const Conv2dShape& s, const Tensor& x, const Tensor& weight,
                      const Tensor& bias, const Tensor& y) {
  if (y.numel() == 0) return;
  DispatchFloat("conv2d", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *in = x.data<T>(), *w = weight.data<T>();
    const T* b = bias.defined() ? bias.data<T>() : nullptr;
    T* out = y.data<T>();
    ForEachPlace(s, [&](int64_t begin, int64_t end) {
      static thread_local Scratch<T> scratch;
      for (int64_t at = begin; at < end; ++at) {
        const Place place(s, at);
        T* to = out + place.out;
        for (int64_t f = 0; b != nullptr && f < s.filters; ++f) {
          std::fill_n(to + f * s.out_pixels(), s.out_pixels(), b[place.group * s.filters + f]);
        }
        // Onto the bias: one rounding.
        Gemm(Dense({.m = s.filters,
                    .n = s.out_pixels(),
                    .k = s.taps(),
                    .dtype = DTypeOf<T>,
                    .a = w + place.weight,
                    .b = Patches(s, in + place.in, scratch),
                    .c_dtype = DTypeOf<T>,
                    .c = to,
                    .accumulate = b != nullptr}));
      }
    });
  });
}

// plane += the gradients of the patches at the input pixels that they came from.
template <class A>
void AddTapRow(const Conv2dShape& s, const A* row, int64_t i, int64_t j, A* plane) {
  const WindowAxis &h = s.rows, &w = s.columns;
  const int64_t top = h.FirstWithTap(i), bottom = std::max(top, h.LastWithTap(i));
  const int64_t left = w.FirstWithTap(j), right = std::max(left, w.LastWithTap(j));
  const int64_t first = w.Begin(left) + j * w.dilation;
  for (int64_t p = top; p < bottom; ++p) {
    const A* from = row + p * w.out + left;
    A* to = plane + (h.Begin(p) + i * h.dilation) * w.in + first;
    if (w.stride == 1) {
      for (int64_t q = 0; q < right - left; ++q) to[q] += from[q];
    } else {
      for (int64_t q = 0; q < right - left; ++q) to[q * w.stride] += from[q];
    }
  }
}

// dx (+)= the sums of the patch gradients of one image of a group.
template <class T>
void FoldPatches(const Conv2dShape& s, const Acc<T>* patches, T* dx, bool accumulate) {
  using A = Acc<T>;
  const int64_t window = s.rows.kernel * s.columns.kernel, pixels = s.in_pixels();
  ParallelFor(s.channels, GrainOf(window * s.out_pixels()), [&](int64_t begin, int64_t end) {
    static thread_local Scratch<A> scratch;
    for (int64_t c = begin; c < end; ++c) {
      A* plane = scratch.Get(pixels);
      T* to = dx + c * pixels;
      std::fill_n(plane, pixels, A(0));
      for (int64_t k = 0; k < window; ++k) {
        AddTapRow(s, patches + (c * window + k) * s.out_pixels(), k / s.columns.kernel,
                  k % s.columns.kernel, plane);
      }
      WriteOrAdd(accumulate, 0, pixels, to, [=](int64_t i) { return plane[i]; });
    }
  });
}

void Conv2dBackwardInputCpu(Stream, const Conv2dShape& s, const Tensor& dy, const Tensor& weight,
                            const Tensor& dx, bool accumulate) {
  if (dx.numel() == 0) return;
  DispatchFloat("conv2d", dy.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const T *from = dy.data<T>(), *w = weight.data<T>();
    T* to = dx.data<T>();
    const bool direct = IsPointwise(s);  // the products are the gradient
    ForEachPlace(s, [&](int64_t begin, int64_t end) {
      static thread_local Scratch<A> scratch;
      for (int64_t at = begin; at < end; ++at) {
        const Place place(s, at);
        A* patches = direct ? nullptr : scratch.Get(s.taps() * s.out_pixels());
        Gemm(Dense({.transpose_a = true,
                    .m = s.taps(),
                    .n = s.out_pixels(),
                    .k = s.filters,
                    .dtype = DTypeOf<T>,
                    .a = w + place.weight,
                    .b = from + place.out,
                    .c_dtype = direct ? DTypeOf<T> : DTypeOf<A>,
                    .c = direct ? static_cast<void*>(to + place.in) : patches,
                    .accumulate = direct && accumulate}));
        if (!direct) FoldPatches<T>(s, patches, to + place.in, accumulate);
      }
    });
  });
}

// ---- The weight's gradient. ----

// Images are summed in blocks, each by itself in order. Their number depends only on the shape:
// enough to share among threads, as long as the sums take no more than about 64 MB.
int64_t Blocks(const Conv2dShape& s) {
  constexpr int64_t kMost = 16, kElements = int64_t{16} << 20;
  const int64_t weight = std::max<int64_t>(1, s.groups * s.filters * s.taps());
  return std::max<int64_t>(1, std::min({s.images, kMost, kElements / weight}));
}

// sums = the products dy patches^T of images [begin, end), for all groups.
template <class T>
void SumProducts(const Conv2dShape& s, const T* x, const T* dy, int64_t begin, int64_t end,
                 Acc<T>* sums) {
  static thread_local Scratch<T> scratch;
  for (int64_t at = begin * s.groups; at < end * s.groups; ++at) {
    const Place place(s, at);
    Gemm(Dense({.transpose_b = true,
                .m = s.filters,
                .n = s.taps(),
                .k = s.out_pixels(),
                .dtype = DTypeOf<T>,
                .a = dy + place.out,
                .b = Patches(s, x + place.in, scratch),
                .c_dtype = DTypeOf<Acc<T>>,
                .c = sums + place.weight,
                .accumulate = place.image > begin}));
  }
}

// target (+)= f(i) of the accumulation type, for every element.
template <class F>
void WriteTarget(const GradTarget& target, const F& f) {
  DispatchFloat("conv2d", target.tensor.dtype(), [&]<class D>(TypeTag<D>) {
    D* out = target.tensor.data<D>();
    const bool accumulate = target.accumulate;
    ParallelFor(target.tensor.numel(), kElementwiseGrain / 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto sum = f(i);
        using A = decltype(sum);
        out[i] = Convert<D>(accumulate ? Convert<std::remove_const_t<A>>(out[i]) + sum : sum);
      }
    });
  });
}

template <class T>
void WeightGradient(const Conv2dShape& s, const T* x, const T* dy, const GradTarget& dweight) {
  using A = Acc<T>;
  const int64_t n = dweight.tensor.numel(), blocks = Blocks(s);
  const Tensor partials = Tensor::Empty({blocks, n}, DTypeOf<A>);
  A* const sums = partials.data<A>();
  if (s.images == 0) partials.Fill(0);
  ParallelForEach(s.images == 0 ? 0 : blocks, 1, [&](int64_t block) {
    SumProducts(s, x, dy, block * s.images / blocks, (block + 1) * s.images / blocks,
                sums + block * n);
  });
  WriteTarget(dweight, [=](int64_t i) {
    A sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += sums[block * n + i];
    return sum;
  });
}

template <class T>
void BiasGradient(const Conv2dShape& s, const T* dy, const GradTarget& dbias) {
  const int64_t filters = s.groups * s.filters, pixels = s.out_pixels();
  const Tensor totals = Tensor::Empty({filters}, DType::kF64);
  double* const sums = totals.data<double>();
  ParallelForEach(filters, 1, [&](int64_t f) {
    sums[f] = 0;
    for (int64_t image = 0; image < s.images; ++image) {
      const T* plane = dy + (image * filters + f) * pixels;
      sums[f] +=
          PairwiseSum<Acc<T>>(0, pixels, [=](int64_t i) { return Convert<Acc<T>>(plane[i]); });
    }
  });
  WriteTarget(dbias, [=](int64_t i) { return sums[i]; });
}

void Conv2dBackwardWeightCpu(Stream, const Conv2dShape& s, const Tensor& x, const Tensor& dy,
                             const GradTarget& dweight, const GradTarget& dbias) {
  DispatchFloat("conv2d", dy.dtype(), [&]<class T>(TypeTag<T>) {
    if (dweight.tensor.defined()) WeightGradient(s, x.data<T>(), dy.data<T>(), dweight);
    if (dbias.tensor.defined()) BiasGradient(s, dy.data<T>(), dbias);
  });
}

LS_REGISTER(conv2d_forward, DeviceType::kCpu, Conv2dForwardCpu);
LS_REGISTER(conv2d_backward_input, DeviceType::kCpu, Conv2dBackwardInputCpu);
LS_REGISTER(conv2d_backward_weight, DeviceType::kCpu, Conv2dBackwardWeightCpu);

}  // namespace
}  // namespace lockstep::cpu
