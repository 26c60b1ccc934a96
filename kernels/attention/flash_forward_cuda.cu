#include "core/cuda/launch.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/flash_tile.cuh"
#include "kernels/cuda/shared.cuh"

namespace lockstep::cuda {
namespace {

template <class T>
struct ForwardArgs {
  HeadTensor<const T> q, k, v;
  HeadTensor<T> y;
  float* log_sum_exp;  // [B, H, S]
  int64_t batches, heads, group;
  int queries, length, d;
  float scale;
  AttentionRules rules;
  AttentionDropoutArgs dropout;
};

// The sizes for heads of up to kHead numbers: as many rows as registers hold.
template <int kHead>
struct ForwardShape {
  static constexpr int kM = kHead == 64 ? 2 : 1;
  static constexpr int kRows = 16 * kM * kFlashWarps, kKeys = 64, kN = kKeys / 8;
  static constexpr int kBytes = sizeof(uint16_t) * (kRows + 2 * kKeys) * kFlashStride<kHead>;
};

// What a warp knows about its rows so far: out / sum is their result, in units of e^largest. `sum`
// is the lane's share. Scores are as the products leave them; `scale` makes them exponents of 2.
template <int kHead, bool kRules>
struct RunningRows {
  static constexpr int kM = ForwardShape<kHead>::kM, kN = ForwardShape<kHead>::kN;
  float out[kM][kHead / 8][4] = {};
  float largest[kM][2], sum[kM][2] = {};

  __device__ RunningRows() {
#pragma unroll
    for (int m = 0; m < kM; ++m) largest[m][0] = largest[m][1] = -INFINITY;
  }

  // Turns the scores into probabilities, in the new units.
  __device__ void Add(float (&s)[kM][kN][4], float scale) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = largest[m][h];
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        }
        // Key 0 is seen by every query: this is a number. But by rules a query may see none so far.
        // A NaN comes out of the exponentials.
        most = WarpReduce<4>(most, [](float a, float b) { return fmaxf(a, b); });
        const float base = kRules && most == -INFINITY ? 0.0f : most;
        const float shrink = FastExp2((largest[m][h] - base) * scale), shift = base * scale;
        largest[m][h] = most;
        float added = 0;
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) {
            s[m][n][i] = FastExp2(fmaf(s[m][n][i], scale, -shift));
            added += s[m][n][i];
          }
        }
        sum[m][h] = fmaf(sum[m][h], shrink, added);
#pragma unroll
        for (int n = 0; n < kHead / 8; ++n) {
          out[m][n][2 * h] *= shrink;
          out[m][n][2 * h + 1] *= shrink;
        }
      }
    }
  }
};

// Writes minus infinity for keys after the query, where the warp's rows begin at `query` and the
// scores at `key`.
template <int kM, int kN>
__device__ inline void HideFuture(float (&s)[kM][kN][4], int query, int key) {
  const int distance = query + FlashGroup() - key - 2 * FlashT();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (8 * n + i % 2 > distance + 16 * m + i / 2 * 8) s[m][n][i] = -INFINITY;
      }
    }
  }
}

// Writes minus infinity for keys before the first that a query sees.
template <int kM, int kN>
__device__ inline void HidePast(float (&s)[kM][kN][4], const FlashFirstKeys<kM, true>& first_keys,
                                int key) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!first_keys.See(m, i, key + 8 * n + 2 * FlashT() + i % 2)) s[m][n][i] = -INFINITY;
      }
    }
  }
}

// FlashAttention-2 (Dao, 2023): probabilities exist only in registers, and those of a warp's rows
// only in that warp. The next keys are copied while values are used, and vice versa.
// Grid: one block per tile of queries of a head. Shared memory: tiles of q, k and v.
// Deterministic: a row's sums run over the keys in order, by tiles.
template <class T, int kHead, bool kDropout, bool kRules>
__global__ void __launch_bounds__(kFlashThreads) FlashForwardKernel(ForwardArgs<T> args) {
  using Shape = ForwardShape<kHead>;
  constexpr int kM = Shape::kM, kN = Shape::kN, kRows = Shape::kRows, kKeys = Shape::kKeys;
  DYN_SHARED(T, shared);
  T* q_tile = shared;
  T* k_tile = q_tile + kRows * kFlashStride<kHead>;
  T* v_tile = k_tile + kKeys * kFlashStride<kHead>;
  const Place at(args.batches, args.heads, args.queries, kRows, true, args.length - args.queries);
  const int length = args.length, first = static_cast<int>(at.first);
  const int end = Min(first + kRows, length);
  const int warp_row = 16 * kM * WarpOfBlock(), query = first + warp_row;
  const int64_t key_head = DivideSmall(at.head, args.group);
  const T *k = args.k.Head(at.batch, key_head), *v = args.v.Head(at.batch, key_head);
  const FlashFirstKeys<kM, kRules> first_keys(args.rules, at.batch, query, length);
  int begin = 0;  // of the tiles of keys
  if constexpr (kRules) {
    begin = args.rules.FirstKey(at.batch, first) / kKeys * kKeys;
  }
  CopyTileAsync<kHead, kRows>(args.q.Head(at.batch, at.head) + first * args.q.row, args.q.row,
                              length - first, args.d, q_tile);
  CopyTileAsync<kHead, kKeys>(k + begin * args.k.row, args.k.row, length - begin, args.d, k_tile);
  CpAsyncCommit();
  CpAsyncWait<0>();
  __syncthreads();
  // Not for the widest rows with dropout: there are no registers for both.
  constexpr bool kHeld = !(kDropout && kM == 2);
  uint32_t q[kM][kHead / 16][4];
#pragma unroll
  for (int m = 0; kHeld && m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) LoadA<kHead>(q_tile, warp_row + 16 * m, i, q[m][i]);
  }
  const float score_scale = kRules ? args.rules.scale : args.scale;
  const float scale = score_scale * 1.4426950408889634f;
  RunningRows<kHead, kRules> rows;
  for (int key = begin; key < end; key += kKeys) {
    CpAsyncWait<0>();
    __syncthreads();  // k_tile is there, and v_tile was read
    CopyTileAsync<kHead, kKeys>(v + key * args.v.row, args.v.row, length - key, args.d, v_tile);
    CpAsyncCommit();
    // By some query of this warp.
    const bool seen = key < query + 16 * kM && first_keys.SeenUpTo(key + kKeys);
    float s[kM][kN][4];
    if (seen) {
      MultiplyRows<kHead>(
          [&](int m, int i, uint32_t(&a)[4]) {
            if constexpr (kHeld) {
#pragma unroll
              for (int j = 0; j < 4; ++j) a[j] = q[m][i][j];
            } else {
              LoadA<kHead>(q_tile, warp_row + 16 * m, i, a);
            }
          },
          k_tile, 0, s);
    }
    CpAsyncWait<0>();
    __syncthreads();  // v_tile is there, and k_tile was read
    if (key + kKeys < end) {
      CopyTileAsync<kHead, kKeys>(k + (key + kKeys) * args.k.row, args.k.row, length - key - kKeys,
                                  args.d, k_tile);
      CpAsyncCommit();
    }
    if (!seen) continue;
    if constexpr (kRules) CapProducts(args.rules, s);
    if (key + kKeys > query + 1) HideFuture(s, query, key);
    if constexpr (kRules) {
      if (key < first_keys.most) HidePast(s, first_keys, key);
    }
    rows.Add(s, scale);
    if constexpr (kDropout) {
      const FlashMask mask(args.dropout, at.batch, at.head);
      uint32_t kept[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        kept[m] = mask.template KeptOfQueries<kN>(query + 16 * m, key);
      }
      const auto dropped = [&](int m, int n, int i) {
        return (kept[m] >> (4 * n + i) & 1) != 0 ? s[m][n][i] : 0.0f;
      };
      MultiplyAddColumns<kHead, kN>(dropped, v_tile, 0, rows.out);
    } else {
      const auto all = [&](int m, int n, int i) { return s[m][n][i]; };
      MultiplyAddColumns<kHead, kN>(all, v_tile, 0, rows.out);
    }
  }
  float factor[kM][2];
  float* log_sum_exp = args.log_sum_exp + (at.batch * args.heads + at.head) * args.queries;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = WarpSum<4>(rows.sum[m][h]);
      factor[m][h] = (kDropout ? args.dropout.keep_scale : 1.0f) / sum;
      const int row = query + 16 * m + 8 * h + FlashGroup();
      if (FlashT() == 0 && row < length) {
        log_sum_exp[row] = rows.largest[m][h] * score_scale + logf(sum);
      }
    }
  }
  StoreFlashRows<kHead>(rows.out, factor, q_tile + warp_row * kFlashStride<kHead>,
                        args.y.Head(at.batch, at.head) + query * args.y.row, args.y.row,
                        length - query, args.d, false);
}

template <class T>
void Run(Stream stream, const AttentionForwardArgs& args) {
  const Tensor q = FlashInput<T>(args.q), k = FlashInput<T>(args.k), v = FlashInput<T>(args.v);
  LS_CHECK(k.dim(1) <= INT32_MAX / 2, "attention: sequences of ", k.dim(1), " are too long");
  const int64_t first = FirstQuery(q, k);
  ForwardArgs<T> a;
  a.q = HeadTensor<const T>(q, first);
  a.k = HeadTensor<const T>(k);
  a.v = HeadTensor<const T>(v);
  a.y = HeadTensor<T>(args.y, first);
  LS_INVARIANT(a.y.Aligned(q.dim(3)), "attention: the output must be aligned to 16 bytes");
  a.log_sum_exp = Data<float>(args.log_sum_exp) - first;
  a.batches = q.dim(0);
  a.queries = static_cast<int>(q.dim(1));
  a.length = static_cast<int>(k.dim(1));
  a.heads = q.dim(2);
  a.group = a.heads / k.dim(2);
  a.d = static_cast<int>(q.dim(3));
  a.scale = static_cast<float>(args.scores.scale);
  a.rules = AttentionRules(args.scores, a.queries, first);
  a.dropout = AttentionDropoutArgs(args.dropout);
  const bool drop = a.dropout.step != nullptr;
  DispatchFlash(a.d, drop, args.scores, [&](auto head, auto dropout, auto rules) {
    constexpr int kHead = decltype(head)::value;
    using Shape = ForwardShape<kHead>;
    Launch({"flash_attention_forward", q, k},
           FlashForwardKernel<T, kHead, decltype(dropout)::value, decltype(rules)::value>,
           Blocks(a.batches * a.heads * DivideUp(a.queries, Shape::kRows), 1), kFlashThreads,
           Shape::kBytes, stream, a);
  });
}

}  // namespace

void FlashAttentionForward(Stream stream, const AttentionForwardArgs& args) {
  DispatchFlashType(args.q.dtype(), [&]<class T>(TypeTag<T>) { Run<T>(stream, args); });
}

}  // namespace lockstep::cuda
