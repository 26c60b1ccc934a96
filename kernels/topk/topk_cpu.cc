#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/topk/topk.h"

namespace lockstep::cpu {
namespace {

// Integers in the order of the numbers: 0 and -0 are equal, and NaN is above all.
uint64_t SortKey(double v) {
  if (v != v) return ~uint64_t{0};
  const uint64_t bits = std::bit_cast<uint64_t>(v == 0 ? 0.0 : v);
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return bits & kSign ? ~bits : bits | kSign;
}

void SortRowsCpu(Stream, bool descending, const Tensor& x, const Tensor& index) {
  const int64_t n = x.dim(1), k = index.dim(1);
  if (index.numel() == 0) return;
  DispatchFloat("sort", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = x.data<T>();
    int64_t* out = index.data<int64_t>();
    // Some ten steps for each element.
    ParallelFor(x.dim(0), GrainOf(10 * n), [=](int64_t begin, int64_t end) {
      std::vector<std::pair<uint64_t, int64_t>> row(static_cast<size_t>(n));
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const uint64_t key = SortKey(Convert<double>(in[r * n + i]));
          row[i] = {descending ? ~key : key, i};
        }
        // The pairs differ, so that this is as good as a stable sort.
        if (k < n) {
          std::partial_sort(row.begin(), row.begin() + k, row.end());
        } else {
          std::sort(row.begin(), row.end());
        }
        for (int64_t i = 0; i < k; ++i) out[r * k + i] = row[i].second;
      }
    });
  });
}

LS_REGISTER(sort_rows, DeviceType::kCpu, SortRowsCpu);

}  // namespace
}  // namespace lockstep::cpu
