#include "kernels/cached_attention/cached_attention.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

// Kernels need the elements of a head side by side; other strides are free.
Tensor WithDenseHeads(const Tensor& x) {
  const Tensor plain = x.Detach();
  return plain.dim(3) == 1 || plain.strides()[3] == 1 ? plain : plain.Contiguous();
}

void CheckTokens(const char* op, const char* name, const Tensor& x) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() == 4, op, ": ", name,
           " must be a floating tensor [B, T, heads, D], got ", x.Describe());
}

// Checks `cache` against x, and the tensors that name its rows.
void CheckCache(const char* op, const Tensor& x, const Tensor& cache, const Tensor& rows,
                const Tensor& positions) {
  LS_CHECK(cache.defined() && cache.ndim() == 4 && cache.dim(3) == x.dim(3) &&
               cache.dtype() == x.dtype() && cache.device() == x.device() && cache.is_contiguous(),
           op, ": the cache must be a contiguous ", x.dtype(), " [S, G, P, ", x.dim(3), "] on ",
           x.device(), ", got ", cache.Describe());
  for (const Tensor* index : {&rows, &positions}) {
    LS_CHECK(index->defined() && index->dtype() == DType::kI32 &&
                 index->shape() == Shape({x.dim(0)}) && index->device() == x.device(),
             op, ": rows and positions must be i32[", x.dim(0), "] on ", x.device(), ", got ",
             rows.Describe(), " and ", positions.Describe());
  }
  LS_CHECK(x.dim(1) <= cache.dim(2), op, ": ", x.dim(1), " tokens do not fit a cache of ",
           cache.dim(2), " positions");
}

}  // namespace

void StoreInCache(const Tensor& x, const Tensor& rows, const Tensor& positions,
                  const Tensor& cache) {
  constexpr const char* kOp = "store_in_cache";
  CheckTokens(kOp, "x", x);
  CheckCache(kOp, x, cache, rows, positions);
  LS_CHECK(cache.dim(1) == x.dim(2), kOp, ": the cache has ", cache.dim(1), " heads and x ",
           x.dim(2));
  LS_CHECK(!NeedsGrad({&x}), kOp, " has no gradient: generate within NoGrad");
  cache_store(CurrentStream(x.device()),
              {WithDenseHeads(x), rows.Contiguous(), positions.Contiguous(), cache.Detach()});
}

Tensor CachedAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rows,
                       const Tensor& positions, const CausalAttentionOptions& options) {
  constexpr const char* kOp = "cached_attention";
  CheckTokens(kOp, "q", q);
  for (const Tensor* cache : {&k, &v}) CheckCache(kOp, q, *cache, rows, positions);
  LS_CHECK(k.shape() == v.shape(), kOp, ": k and v must have the same shape, got ", k.Describe(),
           " and ", v.Describe());
  LS_CHECK(q.dim(2) > 0 && q.dim(3) > 0 && k.dim(1) > 0 && q.dim(2) % k.dim(1) == 0, kOp,
           ": the heads of q must be a positive multiple of those of the cache, got ", q.dim(2),
           " and ", k.dim(1));
  LS_CHECK(!NeedsGrad({&q, &k, &v}), kOp,
           " has no gradient: generate within NoGrad, or train with CausalAttention");
  LS_CHECK(options.dropout == 0 && !options.first_key.defined(), kOp,
           " has neither dropout nor first_key: a cache has one document of a text in a row");
  Tensor y = Tensor::Empty(q.shape(), q.dtype(), q.device());
  cached_attention(
      CurrentStream(q.device()),
      {WithDenseHeads(q), k.Detach(), v.Detach(), rows.Contiguous(), positions.Contiguous(),
       MakeAttentionScores(kOp, options, q.dim(3), q.dim(0), q.dim(1), k.dim(2), q.device()), y});
  return y;
}

}  // namespace lockstep::ops
