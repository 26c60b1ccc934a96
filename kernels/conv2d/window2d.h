// Windows that slide over images: what convolutions and pools share. Usable from .cu files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>

#include "core/error.h"
#include "core/philox.h"  // LS_HOST_DEVICE
#include "core/round_up.h"

namespace lockstep {

// A number for rows and one for columns; a single number sets both.
struct Size2 {
  int64_t h = 0, w = 0;
  constexpr Size2() = default;
  constexpr Size2(int64_t both) : h(both), w(both) {}
  constexpr Size2(int64_t rows, int64_t columns) : h(rows), w(columns) {}
  bool operator==(const Size2&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Size2& s) {
  return out << s.h << " x " << s.w;
}

// One dimension of a sliding window: output o looks at inputs o * stride - padding + k * dilation
// for k in [0, kernel), where these lie in [0, in).
struct WindowAxis {
  int64_t in = 0, out = 0;
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;

  // The input before which output o's window begins; negative within the padding.
  LS_HOST_DEVICE int64_t Begin(int64_t o) const { return o * stride - padding; }
  LS_HOST_DEVICE int64_t extent() const { return (kernel - 1) * dilation + 1; }
  // The outputs [first, last) whose k-th tap lies in the input.
  LS_HOST_DEVICE int64_t FirstWithTap(int64_t k) const {
    const int64_t before = padding - k * dilation;  // inputs are missing up to there
    return before <= 0 ? 0 : Least(out, DivideUp(before, stride));
  }
  LS_HOST_DEVICE int64_t LastWithTap(int64_t k) const {
    const int64_t reach = in + padding - k * dilation;
    return reach <= 0 ? 0 : Least(out, DivideUp(reach, stride));
  }

  // The output whose k-th tap is input i, or -1. Divides in 32 bits, which suffice after
  // MakeWindowAxis's checks: on a GPU a 64-bit division is a call, around which registers are
  // saved.
  LS_HOST_DEVICE int64_t OutputWithTap(int64_t i, int64_t k) const {
    const int64_t t = i + padding - k * dilation;
    if (t < 0) return -1;
    const auto reach = static_cast<uint32_t>(t), step = static_cast<uint32_t>(stride);
    const int64_t o = reach / step;
    return reach % step == 0 && o < out ? o : -1;
  }

 private:
  LS_HOST_DEVICE static int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
};

// The axis with its number of outputs: floor((in + 2 padding - extent) / stride) + 1, or with
// `ceil` the quotient rounded up, without windows that would begin in the padding at the end.
// Throws ArgumentError that names `op` and `what` ("rows"). The window may not exceed the padded
// input.
inline WindowAxis MakeWindowAxis(const char* op, const char* what, int64_t in, int64_t kernel,
                                 int64_t stride, int64_t padding, int64_t dilation,
                                 bool ceil = false) {
  constexpr int64_t kMost = int64_t{1} << 31;  // products stay within 64 bits, sums within 32
  LS_CHECK(kernel >= 1 && stride >= 1 && dilation >= 1 && padding >= 0 &&
               std::max({kernel, stride, dilation, padding}) < kMost,
           op, ": for the ", what, ", kernel, stride and dilation must be at least 1, padding at ",
           "least 0, and all below 2^31; got ", kernel, ", ", stride, ", ", dilation, " and ",
           padding);
  LS_CHECK(in < kMost, op, ": an input of ", in, " ", what, " is too large: it must be below 2^31");
  WindowAxis axis{in, 0, kernel, stride, padding, dilation};
  const int64_t room = in + 2 * padding - axis.extent();
  LS_CHECK(room >= 0, op, ": the window spans ", axis.extent(), " ", what, ", the input has ", in,
           " and ", padding, " of padding on either side: use a smaller kernel or more padding");
  axis.out = (ceil ? DivideUp(room, stride) : room / stride) + 1;
  if (ceil && axis.Begin(axis.out - 1) >= in) --axis.out;
  return axis;
}

}  // namespace lockstep
