// Attention of new tokens over the keys and values that a cache keeps of earlier ones: what makes
// generating a token cost one token's work. For the CPU's sake the cache of a head is contiguous.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/attention/attention.h"

namespace lockstep {

namespace ops {

// A cache is [S, G, P, D]: for each of S sequences and G key heads, P positions of D elements. A
// batch of B sequences names its rows of the cache in `rows`, i32 [B], each row at most once, and
// the positions of its first new tokens in `positions`, i32 [B]. New tokens of sequence b are at
// positions[b], positions[b] + 1, ...

// cache[rows[b], g, positions[b] + t, :] = x[b, t, g, :] for x [B, T, G, D], in place. Throws
// ArgumentError for shapes and dtypes that do not fit, rows and positions outside the cache, and a
// row that is named twice.
void StoreInCache(const Tensor& x, const Tensor& rows, const Tensor& positions,
                  const Tensor& cache);

// For each query: y[b, t, h] = sum_j softmax_j(q[b, t, h] . k[r, g, j] / sqrt(D)) v[r, g, j] over
// the positions j <= positions[b] + t of the cache, with r = rows[b] and g = h / (H / G). q [B, T,
// H, D], k and v caches as above; y [B, T, H, D]. Any floating dtype, sums in f32 or wider. Each
// query's result does not depend on the other queries. Meant for few queries: CausalAttention is
// faster where all tokens of a text are new. From `options`, scale, softcap and window apply as in
// CausalAttention; a dropout or first_key is an ArgumentError.
//
// Has no gradient: throws ArgumentError where one would be recorded.
Tensor CachedAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rows,
                       const Tensor& positions, const CausalAttentionOptions& options = {});

}  // namespace ops

// ---- The low-level operations. ----

// x may be a strided view, except in its last dimension; the cache is contiguous.
struct CacheStoreArgs {
  Tensor x;                // [B, T, G, D]
  Tensor rows, positions;  // i32 [B]
  Tensor cache;            // [S, G, P, D], written in part
};
inline constinit Slot<void(const CacheStoreArgs&)> cache_store{"cache_store"};

struct CachedAttentionArgs {
  Tensor q;                // [B, T, H, D], possibly strided, except in its last dimension
  Tensor k, v;             // [S, G, P, D]
  Tensor rows, positions;  // i32 [B]
  AttentionScores scores;  // without first_key
  Tensor y;                // [B, T, H, D], written
};
inline constinit Slot<void(const CachedAttentionArgs&)> cached_attention{"cached_attention"};

}  // namespace lockstep
