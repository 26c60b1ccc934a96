#include "kernels/masked_attention/masked_attention.h"

#include <cmath>
#include <vector>

#include "core/broadcast.h"
#include "kernels/binary/binary.h"
#include "kernels/cast/cast.h"
#include "kernels/compare/compare.h"
#include "kernels/dropout/dropout.h"
#include "kernels/matmul/matmul.h"
#include "kernels/scale/scale.h"
#include "kernels/softmax/softmax.h"
#include "kernels/tril_triu/tril_triu.h"
#include "kernels/where/where.h"

namespace lockstep::ops {
namespace {

// The score of a key that is hidden. Finite, so that a query without any key has no NaN.
constexpr double kHidden = -1e30;

void Check(const Tensor& q, const Tensor& k, const Tensor& v) {
  LS_CHECK(q.defined() && IsFloating(q.dtype()) && q.ndim() == 4,
           "attention: q must be a floating tensor [B, S, H, D], got ", q.Describe());
  const auto fits = [&](const Tensor& x) {
    return x.defined() && x.ndim() == 4 && x.dtype() == q.dtype() && x.device() == q.device() &&
           x.dim(0) == q.dim(0);
  };
  LS_CHECK(
      fits(k) && k.dim(1) > 0 && k.dim(3) == q.dim(3),
      "attention: k must be [B, T, G, D] with T > 0, of the same B, D, dtype and device as q, ",
      q.Describe(), ", got ", k.Describe());
  LS_CHECK(fits(v) && v.dim(1) == k.dim(1) && v.dim(2) == k.dim(2),
           "attention: v must be [B, T, G, E], of the same B, T, G, dtype and device as k, ",
           k.Describe(), ", got ", v.Describe());
  LS_CHECK(k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0, "attention: the ", q.dim(2),
           " heads of q must be a multiple of the ", k.dim(2), " of k and v");
}

void CheckMask(const Tensor& mask, const Shape& scores, Device device) {
  LS_CHECK(mask.dtype() == DType::kBool || IsFloating(mask.dtype()),
           "attention: the mask must be bool or floating, got ", mask.Describe(),
           ": write mask.To(DType::kBool), true where a query sees the key");
  LS_CHECK(mask.ndim() != 3 || mask.dim(0) == 1, "attention: a mask of three dimensions, here ",
           mask.Describe(),
           ", might be one per sequence, [B, S, T], or one per head, [H, S, T]: write "
           "mask.Unsqueeze(1) for the first, mask.Unsqueeze(0) for the second");
  LS_CHECK(
      mask.device() == device && BroadcastShape("attention's mask", mask.shape(), scores) == scores,
      "attention: the mask must broadcast to the scores [B, H, S, T] = ", scores, " on ", device,
      ", got ", mask.Describe());
}

// bool [s, t]: whether the query sees the key. Made on the device, so that a CUDA graph can
// capture it.
Tensor CausalMask(int64_t s, int64_t t, Device device) {
  LS_CHECK(s <= t, "attention: causal needs a key for each query, got ", s, " queries and ", t,
           " keys");
  return Tril(Tensor::Full({s, t}, 1, DType::kBool, device), t - s);
}

}  // namespace

Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  Check(q, k, v);
  const int64_t b = q.dim(0), s = q.dim(1), h = q.dim(2), d = q.dim(3), t = k.dim(1), g = k.dim(2);
  const DType wide = AccumulationDType(q.dtype());
  const Shape shape = {b, h, s, t};
  // Query heads that share a key head are rows of one product.
  const int64_t rows = h / g * s;
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(d)));
  const Tensor queries = Scale(Cast(q, wide), scale).Permute({0, 2, 1, 3}).Reshape({b, g, rows, d});
  Tensor scores = MatMul(queries, Cast(k, wide).Permute({0, 2, 3, 1})).View(shape);

  std::vector<Tensor> seen;
  if (options.mask.defined()) {
    CheckMask(options.mask, shape, q.device());
    if (options.mask.dtype() == DType::kBool) {
      seen.push_back(options.mask);
    } else {
      scores = scores + Cast(options.mask, wide);
    }
  }
  if (options.causal) seen.push_back(CausalMask(s, t, q.device()));
  for (const Tensor& mask : seen) scores = Where(mask, scores, kHidden);
  Tensor weights = Softmax(scores);
  for (const Tensor& mask : seen) weights = Where(mask, weights, 0.0);
  weights = Dropout(weights, options.dropout, options.site);

  const Tensor y = MatMul(Cast(weights, q.dtype()).View({b, g, rows, t}), v.Permute({0, 2, 1, 3}));
  return y.View({b, h, s, v.dim(3)}).Permute({0, 2, 1, 3}).Contiguous();
}

}  // namespace lockstep::ops
