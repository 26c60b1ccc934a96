#include "kernels/embedding/embedding_cpu.h"

#include <cstring>
#include <vector>

#include "kernels/embedding/embedding.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kChannelBlock = 256;

void EmbeddingForwardCpu(Stream, const Tensor& ids, const Tensor& weight, TablePart part,
                         const Tensor& y) {
  DispatchIndex("embedding", ids.dtype(), [&]<class I>(TypeTag<I>) {
    const int64_t rows = weight.dim(0), first = part.first;
    CheckIds<I>("embedding", ids, part.Whole(rows));
    const I* id = ids.data<I>();
    const int64_t row_bytes = weight.dim(1) * SizeOf(weight.dtype());
    const char* table = static_cast<const char*>(weight.raw_data());
    char* out = static_cast<char*>(y.raw_data());
    if (row_bytes == 0) return;
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain * 4 / row_bytes);
    ParallelForEach(ids.numel(), grain, [=](int64_t i) {
      const int64_t row = id[i] - first;
      if (row < 0 || row >= rows) {
        std::memset(out + i * row_bytes, 0, static_cast<size_t>(row_bytes));
      } else {
        std::memcpy(out + i * row_bytes, table + row * row_bytes, static_cast<size_t>(row_bytes));
      }
    });
  });
}

// Where each id occurs: positions[start[v]] ... positions[start[v + 1] - 1], ascending.
struct Places {
  std::vector<int64_t> start, positions;
};

// For the rows [first, first + v).
template <class I>
Places FindPlaces(const I* id, int64_t n, int64_t first, int64_t v) {
  Places places{std::vector<int64_t>(v + 1), std::vector<int64_t>(n)};
  const auto has = [=](int64_t i) { return id[i] >= first && id[i] < first + v; };
  for (int64_t i = 0; i < n; ++i) {
    if (has(i)) ++places.start[id[i] - first + 1];
  }
  for (int64_t row = 0; row < v; ++row) places.start[row + 1] += places.start[row];
  std::vector<int64_t> next(places.start.begin(), places.start.end() - 1);
  for (int64_t i = 0; i < n; ++i) {
    if (has(i)) places.positions[next[id[i] - first]++] = i;
  }
  return places;
}

// One (row, block of channels) of the weight's gradient.
template <class T, class D>
void SumPlaces(const T* dy, int64_t c, std::span<const int64_t> positions, D* out, int64_t n,
               bool accumulate) {
  using A = std::common_type_t<Acc<T>, Acc<D>>;
  if (positions.empty()) {
    if (!accumulate) std::fill(out, out + n, D{});
    return;
  }
  A sum[kChannelBlock] = {};
  for (const int64_t position : positions) {
    const T* from = dy + position * c;
    for (int64_t i = 0; i < n; ++i) sum[i] += Convert<A>(from[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i] = Convert<D>(accumulate ? Convert<A>(out[i]) + sum[i] : sum[i]);
  }
}

void EmbeddingBackwardCpu(Stream, const Tensor& ids, const Tensor& dy, TablePart part,
                          const Tensor& dweight, bool accumulate) {
  const int64_t v = dweight.dim(0), c = dweight.dim(1);
  if (dweight.numel() == 0) return;
  Places places;
  DispatchIndex("embedding", ids.dtype(), [&]<class Id>(TypeTag<Id>) {
    places = FindPlaces(ids.data<Id>(), ids.numel(), part.first, v);
  });
  const int64_t blocks = DivideUp(c, kChannelBlock);
  DispatchFloat("embedding", dy.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchFloat("embedding", dweight.dtype(), [&]<class To>(TypeTag<To>) {
      const auto* from = dy.data<T>();
      auto* to = dweight.data<To>();
      // Few rows may hold most of the places (characters), so chunks are small.
      ParallelForEach(v * blocks, std::max<int64_t>(1, v * blocks / 1024), [&](int64_t i) {
        const int64_t row = i / blocks, channel = i % blocks * kChannelBlock;
        const std::span positions(places.positions.data() + places.start[row],
                                  places.positions.data() + places.start[row + 1]);
        SumPlaces(from + channel, c, positions, to + row * c + channel,
                  std::min(kChannelBlock, c - channel), accumulate);
      });
    });
  });
}

LS_REGISTER(embedding_forward, DeviceType::kCpu, EmbeddingForwardCpu);
LS_REGISTER(embedding_backward, DeviceType::kCpu, EmbeddingBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
