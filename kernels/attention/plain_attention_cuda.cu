#include <type_traits>

#include "core/cuda/launch.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/cuda/shared.cuh"

namespace lockstep::cuda {
namespace {

// Where a block of queries begins to walk over keys: at the tile with the first that one sees.
template <class Tile, bool kRules>
__device__ int64_t FirstTile(const AttentionRules& rules, const Place& at) {
  if constexpr (!kRules) return 0;
  return rules.FirstKey(at.batch, static_cast<int>(at.first)) / Tile::kColumns * Tile::kColumns;
}

// Calls f(AttentionTile, whether there are rules).
template <class F>
void DispatchTile(int64_t d, const AttentionScores& scores, const F& f) {
  DispatchBool(!scores.plain(),
               [&](auto rules) { DispatchHeadSize(d, [&](auto tile) { f(tile, rules); }); });
}

// ---- Forward. ----

template <class T>
struct ForwardArgs {
  HeadTensor<const T> q, k, v;
  HeadTensor<T> y;
  float* log_sum_exp;                              // [B, H, S]
  int64_t batches, heads, group, queries, length;  // group: query heads of a key head
  int d;
  float scale;
  bool aligned;
  AttentionRules rules;
  AttentionDropoutArgs dropout;
};

// Blocks per multiprocessor: nvcc's choice, except for kernels where it would aim at two or more
// and spill.
template <class Tile, class T, bool kRules>
inline constexpr int kForwardBlocks = kRules || (Tile::kHead == 128 && sizeof(T) == 2) ? 1 : 0;

// Flash attention (Dao et al., 2022) in f32: scores exist only in tiles.
// Grid: one block per tile of queries of a head. Shared memory: tiles of q, k, v and the scores.
// Deterministic: a row's sums run over the keys in order, by tiles.
template <class Tile, class T, bool kRules>
__global__ void __launch_bounds__(kAttentionThreads, kForwardBlocks<Tile, T, kRules>)
    AttentionForwardKernel(ForwardArgs<T> args) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  DYN_SHARED(float, shared);
  float* q_tile = shared;
  float* k_tile = q_tile + Tile::kRowsSize;
  float* v_tile = k_tile + Tile::kColumnsSize;
  float* scores = v_tile + Tile::kColumnsSize;
  const Place at(args.batches, args.heads, args.queries, Tile::kRows, true,
                 args.length - args.queries);
  const HeadMask mask(args.dropout, at.batch, at.head);
  const int64_t rows_left = args.length - at.first;
  LoadTile<Tile, Tile::kRows>(args.q.Head(at.batch, at.head) + at.first * args.q.row, args.q.row,
                              rows_left, args.d, args.aligned, args.scale, q_tile);
  const int64_t key_head = DivideSmall(at.head, args.group);
  const T *k = args.k.Head(at.batch, key_head), *v = args.v.Head(at.batch, key_head);
  float out[kM][Tile::kOut] = {};
  float largest[kM], sum[kM] = {};
#pragma unroll
  for (int i = 0; i < kM; ++i) largest[i] = -INFINITY;

  const int64_t end = Min(at.first + Tile::kRows, args.length);
  const FirstKeys<Tile, kRules> first_keys(args.rules, at.batch, at.first, args.length);
  for (int64_t key = FirstTile<Tile, kRules>(args.rules, at); key < end; key += Tile::kColumns) {
    __syncthreads();  // the tiles were read
    LoadTile<Tile, Tile::kColumns>(k + key * args.k.row, args.k.row, args.length - key, args.d,
                                   args.aligned, 1, k_tile);
    LoadTile<Tile, Tile::kColumns>(v + key * args.v.row, args.v.row, args.length - key, args.d,
                                   args.aligned, 1, v_tile);
    __syncthreads();
    const uint32_t kept = mask.template KeptOfQueries<Tile>(at.first + TileY() * kM, key + TileX());
    float s[kM][kN];
    Multiply<Tile>(q_tile, k_tile, args.d, s);
    if constexpr (kRules) CapScores(args.rules.softcap, s);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const int64_t query = at.first + TileY() * kM + i;
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int64_t column = key + TileX() + kSide * j;
        if (column > query || !first_keys.See(i, column)) s[i][j] = -INFINITY;
        most = MaxOp()(most, s[i][j]);
      }
      // Key 0 is seen by every query: this is a number. But by rules a query may see none so far.
      most = MaxOp()(largest[i], WarpMax<kSide>(most));
      const float shift = kRules && most == -INFINITY ? 0.0f : most;
      const float shrink = expf(largest[i] - shift);
      largest[i] = most;
      float added = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const float p = expf(s[i][j] - shift);
        added += p;
        s[i][j] = p * mask.Factor(kept, kN * i + j);
      }
      sum[i] = sum[i] * shrink + WarpSum<kSide>(added);
#pragma unroll
      for (int j = 0; j < Tile::kOut; ++j) out[i][j] *= shrink;
    }
    StoreScores<Tile>(s, scores);
    __syncwarp();
    MultiplyAdd<Tile>(scores, v_tile, out);
  }
  float factor[kM];
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    factor[i] = 1 / sum[i];
    const int row = TileY() * kM + i;
    if (TileX() == 0 && row < rows_left) {
      args.log_sum_exp[(at.batch * args.heads + at.head) * args.queries + at.first + row] =
          largest[i] + logf(sum[i]);
    }
  }
  StoreRows<Tile>(out, factor, args.y.Head(at.batch, at.head) + at.first * args.y.row, args.y.row,
                  rows_left, args.d, false);
}

}  // namespace

void PlainAttentionForward(Stream stream, const AttentionForwardArgs& args) {
  DispatchFloat("attention", args.q.dtype(), [&]<class T>(TypeTag<T>) {
    ForwardArgs<T> a;
    const int64_t first = FirstQuery(args.q, args.k);
    a.q = HeadTensor<const T>(args.q, first);
    a.k = HeadTensor<const T>(args.k);
    a.v = HeadTensor<const T>(args.v);
    a.y = HeadTensor<T>(args.y, first);
    a.log_sum_exp = Data<float>(args.log_sum_exp) - first;
    a.batches = args.q.dim(0);
    a.queries = args.q.dim(1);
    a.length = args.k.dim(1);
    a.heads = args.q.dim(2);
    a.group = a.heads / args.k.dim(2);
    a.d = static_cast<int>(args.q.dim(3));
    a.scale = static_cast<float>(args.scores.scale);
    a.aligned = a.q.Aligned(a.d) && a.k.Aligned(a.d) && a.v.Aligned(a.d);
    a.rules = AttentionRules(args.scores, a.queries, first);
    a.dropout = AttentionDropoutArgs(args.dropout);
    DispatchTile(args.q.dim(3), args.scores, [&](auto tile, auto rules) {
      using Tile = decltype(tile);
      constexpr size_t kBytes =
          sizeof(float) * (Tile::kRowsSize + 2 * Tile::kColumnsSize + Tile::kScoresSize);
      Launch({"attention_forward", args.q, args.k},
             AttentionForwardKernel<Tile, T, decltype(rules)::value>,
             Blocks(a.batches * a.heads * DivideUp(a.queries, Tile::kRows), 1), kAttentionThreads,
             kBytes, stream, a);
    });
  });
}

namespace {

// ---- Backward. With p the probabilities, m the mask, and delta_i = dy_i . y_i:
//   dv_j = sum_i p_ij m_ij dy_i,   ds_ij = p_ij (m_ij dy_i . v_j - delta_i) scale,
//   dq_i = sum_j ds_ij k_j,        dk_j = sum_i ds_ij q_i,
// where a soft cap multiplies ds_ij by its slope.
// One kernel for dq, whose blocks own queries, and one for dk and dv, whose blocks own keys: the
// scores are computed twice, and nothing is added by two blocks. ----

template <class T>
struct BackwardArgs {
  HeadTensor<const T> q, k, v, dy;
  HeadTensor<T> dq, dk, dv;
  const float *log_sum_exp, *delta;  // [B, H, S]
  int64_t batches, heads, group, queries, length;
  int d;
  float scale;
  bool aligned, accumulate_q, accumulate_k, accumulate_v;
  AttentionRules rules;
  AttentionDropoutArgs dropout;
};

// delta[b, h, t] = dy[b, t, h] . y[b, t, h]. One pass over memory.
// Grid: one warp per row, eight per block. No shared memory. Deterministic.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionDeltaKernel(const T* y, const T* dy, int64_t rows, int64_t length, int64_t heads,
                         int d, float* delta) {
  constexpr int kWarps = kAttentionThreads / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (row >= rows) return;
  float sum = 0;
  for (int i = lane; i < d; i += kWarpSize) {
    sum = fmaf(ToFloat(y[row * d + i]), ToFloat(dy[row * d + i]), sum);
  }
  sum = WarpSum(sum);
  const int64_t token = DivideSmall(row, heads), batch = DivideSmall(token, length);
  const int64_t head = row - token * heads, t = token - batch * length;
  if (lane == 0) delta[(batch * heads + head) * length + t] = sum;
}

// Blocks per multiprocessor: where a tile has fewer rows than usual, shared memory has room for
// one.
template <class Tile, bool kRules>
inline constexpr int kBackwardQueryBlocks =
    kRules || !std::is_same_v<Tile, AttentionTile<Tile::kHead>> ? 1 : 2;

// Grid: one block per tile of queries of a head. Shared memory: tiles of q, dy, k, v and the
// scores. Deterministic: a row's sums run over the keys in order, by tiles.
template <class Tile, class T, bool kRules>
__global__ void __launch_bounds__(kAttentionThreads, kBackwardQueryBlocks<Tile, kRules>)
    AttentionBackwardQueryKernel(BackwardArgs<T> args) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  DYN_SHARED(float, shared);
  float* q_tile = shared;
  float* dy_tile = q_tile + Tile::kRowsSize;
  float* k_tile = dy_tile + Tile::kRowsSize;
  float* v_tile = k_tile + Tile::kColumnsSize;
  float* scores = v_tile + Tile::kColumnsSize;
  const Place at(args.batches, args.heads, args.queries, Tile::kRows, true,
                 args.length - args.queries);
  const HeadMask mask(args.dropout, at.batch, at.head);
  const int64_t rows_left = args.length - at.first;
  LoadTile<Tile, Tile::kRows>(args.q.Head(at.batch, at.head) + at.first * args.q.row, args.q.row,
                              rows_left, args.d, args.aligned, args.scale, q_tile);
  LoadTile<Tile, Tile::kRows>(args.dy.Head(at.batch, at.head) + at.first * args.dy.row, args.dy.row,
                              rows_left, args.d, args.aligned, 1, dy_tile);
  const int64_t statistics = (at.batch * args.heads + at.head) * args.queries + at.first;
  float log_sum[kM], delta[kM];
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const int row = TileY() * kM + i;
    log_sum[i] = row < rows_left ? args.log_sum_exp[statistics + row] : 0.0f;
    delta[i] = row < rows_left ? args.delta[statistics + row] : 0.0f;
  }
  const int64_t key_head = DivideSmall(at.head, args.group);
  const T *k = args.k.Head(at.batch, key_head), *v = args.v.Head(at.batch, key_head);
  float out[kM][Tile::kOut] = {};
  const int64_t end = Min(at.first + Tile::kRows, args.length);
  const FirstKeys<Tile, kRules> first_keys(args.rules, at.batch, at.first, args.length);
  for (int64_t key = FirstTile<Tile, kRules>(args.rules, at); key < end; key += Tile::kColumns) {
    __syncthreads();  // the tiles were read
    LoadTile<Tile, Tile::kColumns>(k + key * args.k.row, args.k.row, args.length - key, args.d,
                                   args.aligned, 1, k_tile);
    LoadTile<Tile, Tile::kColumns>(v + key * args.v.row, args.v.row, args.length - key, args.d,
                                   args.aligned, 1, v_tile);
    __syncthreads();
    const uint32_t kept = mask.template KeptOfQueries<Tile>(at.first + TileY() * kM, key + TileX());
    float s[kM][kN], dp[kM][kN];
    Multiply<Tile>(q_tile, k_tile, args.d, s);
    Multiply<Tile>(dy_tile, v_tile, args.d, dp);
    if constexpr (kRules) CapScores(args.rules.softcap, s);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const int row = TileY() * kM + i;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int64_t column = key + TileX() + kSide * j, query = at.first + row;
        const bool seen = column <= query && row < rows_left && first_keys.See(i, column);
        float p = seen ? expf(s[i][j] - log_sum[i]) : 0.0f;
        if constexpr (kRules) p *= CapSlope(args.rules.softcap, s[i][j]);
        s[i][j] = seen ? p * (mask.Factor(kept, kN * i + j) * dp[i][j] - delta[i]) : 0.0f;
      }
    }
    StoreScores<Tile>(s, scores);
    __syncwarp();
    MultiplyAdd<Tile>(scores, k_tile, out);
  }
  float factor[kM];
#pragma unroll
  for (int i = 0; i < kM; ++i) factor[i] = args.scale;
  StoreRows<Tile>(out, factor, args.dq.Head(at.batch, at.head) + at.first * args.dq.row,
                  args.dq.row, rows_left, args.d, args.accumulate_q);
}

// Grid: one block per tile of keys of a key head. Shared memory: tiles of k, v, q, dy and two of
// scores. Deterministic: a row's sums run over the query heads of the group, and over the queries
// of each in order, by tiles.
template <class Tile, class T, bool kRules>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionBackwardKeyKernel(BackwardArgs<T> args) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  DYN_SHARED(float, shared);
  float* k_tile = shared;
  float* v_tile = k_tile + Tile::kRowsSize;
  float* q_tile = v_tile + Tile::kRowsSize;
  float* dy_tile = q_tile + Tile::kColumnsSize;
  float* p_scores = dy_tile + Tile::kColumnsSize;
  float* ds_scores = p_scores + Tile::kScoresSize;
  const int64_t key_heads = DivideSmall(args.heads, args.group);
  const Place at(args.batches, key_heads, args.length, Tile::kRows, false);
  const int64_t rows_left = args.length - at.first;
  LoadTile<Tile, Tile::kRows>(args.k.Head(at.batch, at.head) + at.first * args.k.row, args.k.row,
                              rows_left, args.d, args.aligned, 1, k_tile);
  LoadTile<Tile, Tile::kRows>(args.v.Head(at.batch, at.head) + at.first * args.v.row, args.v.row,
                              rows_left, args.d, args.aligned, 1, v_tile);
  float dk[kM][Tile::kOut] = {}, dv[kM][Tile::kOut] = {};
  for (int64_t head = at.head * args.group; head < (at.head + 1) * args.group; ++head) {
    const HeadMask mask(args.dropout, at.batch, head);
    const T *q = args.q.Head(at.batch, head), *dy = args.dy.Head(at.batch, head);
    const int64_t statistics = (at.batch * args.heads + head) * args.queries;
    // The first queries that see a key of this tile, or the first of all.
    const int64_t first_query = args.length - args.queries;
    const int64_t begin = at.first > first_query ? at.first : first_query;
    int64_t end = args.length;
    if constexpr (kRules) {
      end = args.rules.EndQuery(at.batch, static_cast<int>(at.first) + Tile::kRows - 1,
                                static_cast<int>(begin), static_cast<int>(args.length));
    }
    for (int64_t query = begin; query < end; query += Tile::kColumns) {
      __syncthreads();  // the tiles were read
      // Scaled as in forward: the scores have the same bits, and none exceeds its log-sum-exp.
      LoadTile<Tile, Tile::kColumns>(q + query * args.q.row, args.q.row, args.length - query,
                                     args.d, args.aligned, args.scale, q_tile);
      LoadTile<Tile, Tile::kColumns>(dy + query * args.dy.row, args.dy.row, args.length - query,
                                     args.d, args.aligned, 1, dy_tile);
      __syncthreads();
      const uint32_t kept =
          mask.template KeptOfKeys<Tile>(at.first + TileY() * kM, query + TileX());
      float s[kM][kN], dp[kM][kN];
      Multiply<Tile>(k_tile, q_tile, args.d, s);
      Multiply<Tile>(v_tile, dy_tile, args.d, dp);
      if constexpr (kRules) CapScores(args.rules.softcap, s);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int64_t column = query + TileX() + kSide * j;
        const bool is_query = column < args.length;
        const float log_sum = is_query ? args.log_sum_exp[statistics + column] : 0.0f;
        const float delta = is_query ? args.delta[statistics + column] : 0.0f;
        int first_key = 0;
        if constexpr (kRules) {
          first_key = args.rules.FirstKey(at.batch, static_cast<int>(Min(column, args.length - 1)));
        }
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          const int64_t key = at.first + TileY() * kM + i;
          const bool seen = is_query && key <= column && (!kRules || key >= first_key);
          const float p = seen ? expf(s[i][j] - log_sum) : 0.0f;
          const float factor = mask.Factor(kept, kN * i + j);
          float ds = seen ? p * (factor * dp[i][j] - delta) : 0.0f;
          if constexpr (kRules) ds *= CapSlope(args.rules.softcap, s[i][j]);
          s[i][j] = p * factor;
          dp[i][j] = ds;
        }
      }
      StoreScores<Tile>(s, p_scores);
      StoreScores<Tile>(dp, ds_scores);
      __syncwarp();
      MultiplyAdd<Tile>(p_scores, dy_tile, dv);
      MultiplyAdd<Tile>(ds_scores, q_tile, dk);
    }
  }
  float ones[kM];  // q carries dk's factor
#pragma unroll
  for (int i = 0; i < kM; ++i) ones[i] = 1;
  StoreRows<Tile>(dk, ones, args.dk.Head(at.batch, at.head) + at.first * args.dk.row, args.dk.row,
                  rows_left, args.d, args.accumulate_k);
  StoreRows<Tile>(dv, ones, args.dv.Head(at.batch, at.head) + at.first * args.dv.row, args.dv.row,
                  rows_left, args.d, args.accumulate_v);
}

// Shared memory of AttentionBackwardKeyKernel.
template <class Tile>
inline constexpr size_t kBackwardBytes = sizeof(float) * 2 *
                                         (Tile::kRowsSize + Tile::kColumnsSize + Tile::kScoresSize);

// A GPU of capability 8.6, 8.9 or 12 has 99 KiB for a block, where tiles for heads above 64 have
// fewer rows. The sums' order is the same.
inline constexpr size_t kLeastSharedBytes = 99 << 10;
template <class Tile, bool kTight>
using BackwardTile = std::conditional_t<kTight && (kBackwardBytes<Tile> > kLeastSharedBytes),
                                        AttentionTile<Tile::kHead, Tile::kM - 1>, Tile>;

template <class Tile>
bool Fits(Device device) {
  static_assert(kBackwardBytes<BackwardTile<Tile, true>> <= kLeastSharedBytes);
  if constexpr (kBackwardBytes<Tile> <= kLeastSharedBytes) return true;
  int most = 0;
  LS_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.index));
  return kBackwardBytes<Tile> <= static_cast<size_t>(most);
}

}  // namespace

void PlainAttentionBackward(Stream stream, const AttentionBackwardArgs& args) {
  const int64_t batches = args.q.dim(0), queries = args.q.dim(1), heads = args.q.dim(2);
  const int64_t rows = CountRows(args.q), d = args.q.dim(3), length = args.k.dim(1);
  const Tensor delta = Tensor::Empty({batches, heads, queries}, DType::kF32, args.q.device());
  DispatchFloat("attention", args.q.dtype(), [&]<class T>(TypeTag<T>) {
    BackwardArgs<T> a;
    const int64_t first = FirstQuery(args.q, args.k);
    a.q = HeadTensor<const T>(args.q, first);
    a.k = HeadTensor<const T>(args.k);
    a.v = HeadTensor<const T>(args.v);
    a.dy = HeadTensor<const T>(args.dy, first);
    a.dq = HeadTensor<T>(args.dq, first);
    a.dk = HeadTensor<T>(args.dk);
    a.dv = HeadTensor<T>(args.dv);
    a.log_sum_exp = Data<float>(args.log_sum_exp) - first;
    a.delta = Data<float>(delta) - first;
    a.batches = batches;
    a.heads = heads;
    a.group = heads / args.k.dim(2);
    a.queries = queries;
    a.length = length;
    a.d = static_cast<int>(d);
    a.scale = static_cast<float>(args.scores.scale);
    a.aligned = a.q.Aligned(d) && a.k.Aligned(d) && a.v.Aligned(d) && a.dy.Aligned(d);
    a.accumulate_q = args.accumulate_q;
    a.accumulate_k = args.accumulate_k;
    a.accumulate_v = args.accumulate_v;
    a.rules = AttentionRules(args.scores, queries, first);
    a.dropout = AttentionDropoutArgs(args.dropout);
    const LaunchName name("attention_backward", args.q, args.k);
    Launch(name, AttentionDeltaKernel<T>, Blocks(rows, kAttentionThreads / kWarpSize),
           kAttentionThreads, 0, stream, Data<T>(args.y), Data<T>(args.dy), rows, queries, heads,
           a.d, Data<float>(delta));
    DispatchTile(d, args.scores, [&](auto roomy, auto rules) {
      DispatchBool(!Fits<decltype(roomy)>(stream.device), [&](auto tight) {
        using Tile = BackwardTile<decltype(roomy), decltype(tight)::value>;
        constexpr bool kRules = decltype(rules)::value;
        const int64_t query_blocks = batches * heads * DivideUp(queries, Tile::kRows);
        const int64_t key_blocks = batches * args.k.dim(2) * DivideUp(length, Tile::kRows);
        Launch(name, AttentionBackwardQueryKernel<Tile, T, kRules>, Blocks(query_blocks, 1),
               kAttentionThreads, kBackwardBytes<Tile> - sizeof(float) * Tile::kScoresSize, stream,
               a);
        Launch(name, AttentionBackwardKeyKernel<Tile, T, kRules>, Blocks(key_blocks, 1),
               kAttentionThreads, kBackwardBytes<Tile>, stream, a);
      });
    });
  });
}

}  // namespace lockstep::cuda
