#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cached_attention/cached_attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/scratch.h"

namespace lockstep::cpu {
namespace {

// Throws for a sequence that the cache has no place for, or that the batch has twice.
void CheckPlaces(const char* op, const Tensor& rows, const Tensor& positions, int64_t tokens,
                 const Tensor& cache, bool distinct) {
  const int32_t *row = rows.data<int32_t>(), *position = positions.data<int32_t>();
  for (int64_t b = 0; b < rows.numel(); ++b) {
    LS_CHECK(row[b] >= 0 && row[b] < cache.dim(0), op, ": the row ", row[b], " of sequence ", b,
             " is not in [0, ", cache.dim(0), "), the sequences of the cache");
    LS_CHECK(position[b] >= 0 && position[b] + tokens <= cache.dim(2), op, ": ", tokens,
             " tokens from position ", position[b], " do not fit a cache of ", cache.dim(2),
             " positions");
    LS_CHECK(!distinct || std::find(row, row + b, row[b]) == row + b, op, ": the row ", row[b],
             " of the cache is named twice");
  }
}

void CacheStoreCpu(Stream, const CacheStoreArgs& args) {
  const Tensor &x = args.x, &cache = args.cache;
  const int64_t t = x.dim(1), heads = x.dim(2), d = x.dim(3), capacity = cache.dim(2);
  CheckPlaces("store_in_cache", args.rows, args.positions, t, cache, /*distinct=*/true);
  if (x.numel() == 0) return;
  const int32_t *row = args.rows.data<int32_t>(), *position = args.positions.data<int32_t>();
  const int64_t size = SizeOf(x.dtype()), bytes = d * size;
  const char* from = static_cast<const char*>(x.raw_data());
  char* to = static_cast<char*>(cache.raw_data());
  const Shape& s = x.strides();
  ParallelForEach(x.dim(0) * t * heads, GrainOf(d), [&](int64_t at) {
    const int64_t h = at % heads, i = at / heads % t, b = at / heads / t;
    const int64_t place = (row[b] * heads + h) * capacity + position[b] + i;
    std::memcpy(to + place * bytes, from + (b * s[0] + i * s[1] + h * s[2]) * size, bytes);
  });
}

// q . k in kLanes partial sums, so that the order depends only on d.
template <class A, class T>
inline A Dot(const A* q, const T* k, int64_t d) {
  constexpr int64_t kLanes = 16;
  A sum[kLanes] = {};
  int64_t l = 0;
  for (; l + kLanes <= d; l += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) sum[i] += q[l + i] * Convert<A>(k[l + i]);
  }
  for (int64_t i = 0; l + i < d; ++i) sum[i] += q[l + i] * Convert<A>(k[l + i]);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  return sum[0];
}

// One query over the last of n keys and values [n, d] that it sees. `memory` has room for n + 2 d.
template <class A, class T>
void Attend(const T* q, const T* k, const T* v, int64_t n, int64_t d, const AttentionScores& scores,
            A* memory, T* y) {
  if (scores.window > 0 && n > scores.window) {
    k += (n - scores.window) * d;
    v += (n - scores.window) * d;
    n = scores.window;
  }
  A *p = memory, *query = memory + n, *out = query + d;
  for (int64_t l = 0; l < d; ++l) query[l] = Convert<A>(q[l]) * static_cast<A>(scores.scale);
  A largest = -std::numeric_limits<A>::infinity();
  for (int64_t j = 0; j < n; ++j) {
    p[j] = Dot(query, k + j * d, d);
    if (scores.softcap > 0) {
      const A softcap = static_cast<A>(scores.softcap);
      p[j] = softcap * Tanh(p[j] / softcap);
    }
    largest = p[j] > largest ? p[j] : largest;
  }
  for (int64_t j = 0; j < n; ++j) p[j] = Exp(p[j] - largest);
  A sum = 0;
  std::fill(out, out + d, A(0));
  for (int64_t j = 0; j < n; ++j) {
    const A weight = p[j];
    const T* value = v + j * d;
    sum += weight;
    for (int64_t l = 0; l < d; ++l) out[l] = std::fma(weight, Convert<A>(value[l]), out[l]);
  }
  for (int64_t l = 0; l < d; ++l) y[l] = Convert<T>(out[l] / sum);
}

void CachedAttentionCpu(Stream, const CachedAttentionArgs& args) {
  const Tensor& q = args.q;
  const int64_t t = q.dim(1), heads = q.dim(2), d = q.dim(3);
  const int64_t groups = args.k.dim(1), capacity = args.k.dim(2);
  CheckPlaces("cached_attention", args.rows, args.positions, t, args.k, /*distinct=*/false);
  if (q.numel() == 0) return;
  const int32_t *row = args.rows.data<int32_t>(), *position = args.positions.data<int32_t>();
  const int64_t longest = *std::max_element(position, position + q.dim(0)) + t;
  const int64_t grain = std::max<int64_t>(1, 2 * kElementwiseGrain / (longest * d));
  const Shape& s = q.strides();
  DispatchFloat("cached_attention", q.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    ParallelFor(q.dim(0) * t * heads, grain, [&](int64_t begin, int64_t end) {
      static thread_local Scratch<A> scratch;
      A* memory = scratch.Get(capacity + 2 * d);
      for (int64_t at = begin; at < end; ++at) {
        const int64_t h = at % heads, i = at / heads % t, b = at / heads / t;
        const int64_t keys = (row[b] * groups + h / (heads / groups)) * capacity * d;
        Attend<A, T>(q.data<T>() + b * s[0] + i * s[1] + h * s[2], args.k.data<T>() + keys,
                     args.v.data<T>() + keys, position[b] + i + 1, d, args.scores, memory,
                     args.y.data<T>() + at * d);
      }
    });
  });
}

LS_REGISTER(cache_store, DeviceType::kCpu, CacheStoreCpu);
LS_REGISTER(cached_attention, DeviceType::kCpu, CachedAttentionCpu);

}  // namespace
}  // namespace lockstep::cpu
