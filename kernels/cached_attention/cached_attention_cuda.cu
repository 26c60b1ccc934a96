#include "core/cuda/launch.h"
#include "kernels/cached_attention/cached_attention.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/shared.cuh"
#include "kernels/cuda/types.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
constexpr int kKeys = kThreads;  // of a tile

// Where the sequences of a batch are in a cache [S, G, P, D].
struct CachePlaces {
  const int *rows, *positions;
  int64_t sequences, groups, capacity, d;

  CachePlaces(const Tensor& batch_rows, const Tensor& batch_positions, const Tensor& cache)
      : rows(Data<int>(batch_rows)),
        positions(Data<int>(batch_positions)),
        sequences(cache.dim(0)),
        groups(cache.dim(1)),
        capacity(cache.dim(2)),
        d(cache.dim(3)) {}
  __device__ bool Has(int64_t b, int64_t tokens) const {
    return rows[b] >= 0 && rows[b] < sequences && positions[b] >= 0 &&
           positions[b] + tokens <= capacity;
  }
  // The first element of a head of sequence b.
  __device__ int64_t Head(int64_t b, int64_t group) const {
    return (rows[b] * groups + group) * capacity * d;
  }
};

// A tensor [B, T, heads, D] that may be a view, except in its last dimension.
template <class T>
struct Tokens {
  const T* data;
  int64_t batch, token, head;  // strides
  int64_t length, heads;

  explicit Tokens(const Tensor& x)
      : data(Data<T>(x)),
        batch(x.strides()[0]),
        token(x.strides()[1]),
        head(x.strides()[2]),
        length(x.dim(1)),
        heads(x.dim(2)) {}
};

// A place outside the cache cannot be reported to the host: such tokens are left out.
// Grid: one thread per element of x [B, T, G, D]. No shared memory.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    CacheStoreKernel(Tokens<T> x, CachePlaces places, int64_t n, T* cache) {
  const int64_t at = GlobalThread();
  if (at >= n) return;
  const int64_t l = at % places.d, h = at / places.d % x.heads;
  const int64_t i = at / places.d / x.heads % x.length, b = at / places.d / x.heads / x.length;
  if (!places.Has(b, x.length)) return;
  cache[places.Head(b, h) + (places.positions[b] + i) * places.d + l] =
      x.data[b * x.batch + i * x.token + h * x.head + l];
}

// One query over the keys and values of its sequence that it sees, in tiles of kKeys keys, with a
// running softmax in f32. A place outside the cache cannot be reported to the host: y is NaN there.
// Grid: one block per query [B, T, H]; its warps share the keys of a tile, then its threads share
// the elements of y. Shared memory: the query, y and the tile's probabilities. Deterministic: the
// order of sums depends only on d and the number of keys. kRules: there is a soft cap or a window.
template <class T, bool kRules>
__global__ void __launch_bounds__(kThreads)
    CachedAttentionKernel(Tokens<T> q, CachePlaces places, const T* k, const T* v, float scale,
                          float softcap, int64_t window, T* y) {
  DYN_SHARED(float, shared);
  __shared__ float scratch[kWarps];
  const int d = static_cast<int>(places.d), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize, warp = WarpOfBlock();
  float *query = shared, *out = query + d, *p = out + d;
  const int64_t at = blockIdx.x, token = DivideSmall(at, q.heads), h = at - token * q.heads;
  const int64_t b = DivideSmall(token, q.length), i = token - b * q.length;
  if (!places.Has(b, q.length)) {
    for (int l = thread; l < d; l += kThreads) y[at * d + l] = Convert<T>(NAN);
    return;
  }
  const int64_t head = places.Head(b, DivideSmall(h, DivideSmall(q.heads, places.groups)));
  const int64_t keys = places.positions[b] + i + 1;
  const T* from = q.data + b * q.batch + i * q.token + h * q.head;
  for (int l = thread; l < d; l += kThreads) {
    query[l] = ToFloat(from[l]) * scale;
    out[l] = 0;
  }
  float largest = -INFINITY, sum = 0;
  for (int64_t first = kRules && keys > window ? keys - window : 0; first < keys; first += kKeys) {
    const int count = CountWithin<kKeys>(first, keys);
    __syncthreads();  // the query is there, and the probabilities were read
    for (int j = warp; j < count; j += kWarps) {
      const T* key = k + head + (first + j) * d;
      float score = 0;
      for (int l = lane; l < d; l += kWarpSize) score = fmaf(query[l], ToFloat(key[l]), score);
      score = WarpSum(score);
      if (kRules && softcap > 0) score = softcap * tanhf(score / softcap);
      if (lane == 0) p[j] = score;
    }
    __syncthreads();
    const float mine = thread < count ? p[thread] : -INFINITY;
    const float most = MaxOp()(largest, BlockMax<kThreads>(mine, scratch, -INFINITY));
    const float shrink = expf(largest - most), weight = expf(mine - most);
    largest = most;
    p[thread] = weight;
    sum = sum * shrink + BlockSum<kThreads>(weight, scratch);  // synchronises: p is there
    for (int l = thread; l < d; l += kThreads) {
      float total = out[l] * shrink;
      const T* value = v + head + first * d + l;
      for (int j = 0; j < count; ++j) total = fmaf(p[j], ToFloat(value[int64_t{j} * d]), total);
      out[l] = total;
    }
  }
  for (int l = thread; l < d; l += kThreads) y[at * d + l] = Convert<T>(out[l] / sum);
}

void CacheStoreCuda(Stream stream, const CacheStoreArgs& args) {
  DispatchFloat("store_in_cache", args.x.dtype(), [&]<class T>(TypeTag<T>) {
    const int64_t n = args.x.numel();
    LaunchThreads({"store_in_cache", args.x, args.cache}, CacheStoreKernel<T>, n, stream,
                  Tokens<T>(args.x), CachePlaces(args.rows, args.positions, args.cache), n,
                  Data<T>(args.cache));
  });
}

void CachedAttentionCuda(Stream stream, const CachedAttentionArgs& args) {
  if (args.q.numel() == 0) return;
  DispatchFloat("cached_attention", args.q.dtype(), [&]<class T>(TypeTag<T>) {
    const size_t bytes = sizeof(float) * (2 * static_cast<size_t>(args.q.dim(3)) + kKeys);
    DispatchBool(!args.scores.plain(), [&](auto rules) {
      Launch({"cached_attention", args.q, args.k}, CachedAttentionKernel<T, decltype(rules)::value>,
             Blocks(args.q.numel() / args.q.dim(3), 1), kThreads, bytes, stream, Tokens<T>(args.q),
             CachePlaces(args.rows, args.positions, args.k), Data<T>(args.k), Data<T>(args.v),
             static_cast<float>(args.scores.scale), static_cast<float>(args.scores.softcap),
             args.scores.window > 0 ? args.scores.window : INT64_MAX, Data<T>(args.y));
    });
  });
}

LS_REGISTER(cache_store, DeviceType::kCuda, CacheStoreCuda);
LS_REGISTER(cached_attention, DeviceType::kCuda, CachedAttentionCuda);

}  // namespace
}  // namespace lockstep::cuda
