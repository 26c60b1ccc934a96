#include <algorithm>
#include <cstring>

#include "kernels/cpu/elementwise.h"
#include "kernels/tril_triu/tril_triu.h"

namespace lockstep::cpu {
namespace {

// Zero is the same bits in every dtype, so elements are bytes.
void TriangleCpu(Stream, bool upper, int64_t diagonal, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t rows = x.dim(1), columns = x.dim(2), element = SizeOf(x.dtype());
  const char* in = static_cast<const char*>(x.raw_data());
  char* out = static_cast<char*>(y.raw_data());
  ParallelForEach(x.dim(0) * rows, GrainOf(columns), [=](int64_t row) {
    // The columns [first, last) are kept.
    const int64_t edge = row % rows + diagonal;
    const int64_t first = upper ? std::clamp<int64_t>(edge, 0, columns) : 0;
    const int64_t last = upper ? columns : std::clamp<int64_t>(edge + 1, 0, columns);
    const char* from = in + row * columns * element;
    char* to = out + row * columns * element;
    std::memset(to, 0, static_cast<size_t>(first * element));
    std::memcpy(to + first * element, from + first * element,
                static_cast<size_t>((last - first) * element));
    std::memset(to + last * element, 0, static_cast<size_t>((columns - last) * element));
  });
}

LS_REGISTER(triangle_slot, DeviceType::kCpu, TriangleCpu);

}  // namespace
}  // namespace lockstep::cpu
