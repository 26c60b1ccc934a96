#include "core/cuda/launch.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/flash_tile.cuh"
#include "kernels/cuda/shared.cuh"

namespace lockstep::cuda {
namespace {

// With p the probabilities, m the mask, and delta_i = dy_i . y_i:
//   dv_j = sum_i p_ij m_ij dy_i,   ds_ij = p_ij (m_ij dy_i . v_j - delta_i) scale,
//   dq_i = sum_j ds_ij k_j,        dk_j = sum_i ds_ij q_i,
// where a soft cap multiplies ds_ij by its slope.
// One kernel for dq, whose blocks own queries, and one for dk and dv, whose blocks own keys: the
// scores are computed twice (7 matrix products instead of 5), and nothing is added by two blocks.

template <class T>
struct BackwardArgs {
  HeadTensor<const T> q, k, v, dy;
  HeadTensor<T> dq, dk, dv;
  const float *log_sum_exp, *delta;  // [B, H, S]
  int64_t batches, heads, group;
  int queries, length, d;
  float scale;
  bool accumulate_q, accumulate_k, accumulate_v;
  AttentionRules rules;
  AttentionDropoutArgs dropout;
};

// The sizes for heads of up to kHead numbers: kRows rows are owned, kColumns make a tile of what a
// block walks over; the scores of 8 kN (where keys are owned: 8 kKeyN) columns are in registers at
// a time.
template <int kHead>
struct BackwardShape {
  static constexpr int kM = kHead == 64 ? 2 : 1, kN = 4, kKeyN = kHead == 64 ? 2 : 4;
  static constexpr int kRows = 16 * kM * kFlashWarps, kColumns = kHead == 64 ? 64 : 32;
  static constexpr int kRowsSize = kRows * kFlashStride<kHead>;
  static constexpr int kColumnsSize = kColumns * kFlashStride<kHead>;
  // Two tiles of rows; two of columns, twice: one is copied while the other is used.
  static constexpr int kBytes = sizeof(uint16_t) * (2 * kRowsSize + 4 * kColumnsSize);
  static constexpr int kStatistics = 2 * kColumns;  // of a tile of queries
};

constexpr float kLog2E = 1.4426950408889634f;

// delta[b, h, t] = dy[b, t, h] . y[b, t, h]. One pass over memory, 16 bytes per access.
// Grid: kHead / 8 lanes per row. No shared memory. Deterministic.
template <class T, int kHead>
__global__ void __launch_bounds__(kFlashThreads)
    FlashDeltaKernel(const T* y, const T* dy, int64_t rows, int64_t length, int64_t heads, int d,
                     float* delta) {
  constexpr int kLanes = kHead / 8;
  const int64_t row = GlobalThread() / kLanes;
  const int piece = static_cast<int>(threadIdx.x) % kLanes;
  float sum = 0;
  if (row < rows && piece * 8 < d) {
    const int64_t at = row * d + piece * 8;
    const Packed<T> a = Load(y + at), b = Load(dy + at);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(ToFloat(a[i]), ToFloat(b[i]), sum);
  }
  sum = WarpSum<kLanes>(sum);
  if (piece != 0 || row >= rows) return;
  const int64_t token = DivideSmall(row, heads), batch = DivideSmall(token, length);
  const int64_t head = row - token * heads, t = token - batch * length;
  delta[(batch * heads + head) * length + t] = sum;
}

// Grid: one block per tile of queries of a head. Shared memory: tiles of q and dy, two of k and v.
// Deterministic: a row's sums run over the keys in order, by tiles.
template <class T, int kHead, bool kDropout, bool kRules>
__global__ void __launch_bounds__(kFlashThreads) FlashBackwardQueryKernel(BackwardArgs<T> args) {
  using Shape = BackwardShape<kHead>;
  constexpr int kM = Shape::kM, kN = Shape::kN, kRows = Shape::kRows, kKeys = Shape::kColumns;
  DYN_SHARED(T, shared);
  T* q_tile = shared;
  T* dy_tile = q_tile + Shape::kRowsSize;
  T* kv_tiles = dy_tile + Shape::kRowsSize;
  const Place at(args.batches, args.heads, args.queries, kRows, true, args.length - args.queries);
  const int length = args.length, first = static_cast<int>(at.first);
  const int end = Min(first + kRows, length);
  const int warp_row = 16 * kM * WarpOfBlock(), query = first + warp_row;
  const int64_t key_head = DivideSmall(at.head, args.group);
  const T *k = args.k.Head(at.batch, key_head), *v = args.v.Head(at.batch, key_head);
  const auto copy_keys = [&](int key, T* to) {
    CopyTileAsync<kHead, kKeys>(k + key * args.k.row, args.k.row, length - key, args.d, to);
    CopyTileAsync<kHead, kKeys>(v + key * args.v.row, args.v.row, length - key, args.d,
                                to + Shape::kColumnsSize);
    CpAsyncCommit();
  };
  CopyTileAsync<kHead, kRows>(args.q.Head(at.batch, at.head) + first * args.q.row, args.q.row,
                              length - first, args.d, q_tile);
  CopyTileAsync<kHead, kRows>(args.dy.Head(at.batch, at.head) + first * args.dy.row, args.dy.row,
                              length - first, args.d, dy_tile);
  const FlashFirstKeys<kM, kRules> first_keys(args.rules, at.batch, query, length);
  int first_tile = 0;
  if constexpr (kRules) {
    first_tile = args.rules.FirstKey(at.batch, first) / kKeys;
  }
  copy_keys(first_tile * kKeys, kv_tiles + first_tile % 2 * 2 * Shape::kColumnsSize);

  const int64_t statistics = (at.batch * args.heads + at.head) * args.queries;
  float log_sum[kM][2], delta[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = query + 16 * m + 8 * h + FlashGroup();
      log_sum[m][h] = row < length ? args.log_sum_exp[statistics + row] * kLog2E : 0.0f;
      delta[m][h] = row < length ? args.delta[statistics + row] : 0.0f;
    }
  }
  const float scale = (kRules ? args.rules.scale : args.scale) * kLog2E;
  float dq[kM][kHead / 8][4] = {};
  for (int tile = first_tile; tile * kKeys < end; ++tile) {
    CpAsyncWait<0>();
    __syncthreads();  // this tile is there, and the other one was read
    const T* k_tile = kv_tiles + tile % 2 * 2 * Shape::kColumnsSize;
    const T* v_tile = k_tile + Shape::kColumnsSize;
    if ((tile + 1) * kKeys < end) {
      copy_keys((tile + 1) * kKeys, kv_tiles + (tile + 1) % 2 * 2 * Shape::kColumnsSize);
    }
#pragma unroll 1
    for (int column = 0; column < kKeys; column += 8 * kN) {
      const int key = tile * kKeys + column;
      if (key >= query + 16 * kM) break;  // no query of this warp sees it
      if (!first_keys.SeenUpTo(key + 8 * kN)) continue;
      float s[kM][kN][4], dp[kM][kN][4];
      MultiplyRows<kHead>(
          [&](int m, int i, uint32_t(&a)[4]) { LoadA<kHead>(q_tile, warp_row + 16 * m, i, a); },
          k_tile, column, s);
      MultiplyRows<kHead>(
          [&](int m, int i, uint32_t(&a)[4]) { LoadA<kHead>(dy_tile, warp_row + 16 * m, i, a); },
          v_tile, column, dp);
      if constexpr (kRules) CapProducts(args.rules, s);
      const int distance = query + FlashGroup() - key - 2 * FlashT();
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        uint32_t kept = ~0u;
        if constexpr (kDropout) {
          kept = FlashMask(args.dropout, at.batch, at.head)
                     .template KeptOfQueries<kN>(query + 16 * m, key);
        }
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const bool seen = 8 * n + i % 2 <= distance + 16 * m + i / 2 * 8 &&
                              first_keys.See(m, i, key + 8 * n + 2 * FlashT() + i % 2);
            float p = FastExp2(fmaf(s[m][n][i], scale, -log_sum[m][i / 2]));
            if constexpr (kRules) p *= FlashCapSlope(args.rules, s[m][n][i]);
            float g = dp[m][n][i];
            if constexpr (kDropout) {
              g = (kept >> (4 * n + i) & 1) != 0 ? g * args.dropout.keep_scale : 0.0f;
            }
            s[m][n][i] = seen ? p * (g - delta[m][i / 2]) : 0.0f;
          }
        }
      }
      const auto ds = [&](int m, int n, int i) { return s[m][n][i]; };
      MultiplyAddColumns<kHead, kN>(ds, k_tile, column, dq);
    }
  }
  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = args.scale;
  StoreFlashRows<kHead>(dq, factor, q_tile + warp_row * kFlashStride<kHead>,
                        args.dq.Head(at.batch, at.head) + query * args.dq.row, args.dq.row,
                        length - query, args.d, args.accumulate_q);
}

// Where tile `index` of a block of keys is: the tiles cover all queries from `first` on, for each
// query head of the group.
struct QueryTile {
  int64_t head;
  int query;

  __device__ QueryTile(int index, int tiles_of_head, int64_t first_head, int first, int queries)
      : head(first_head + index / tiles_of_head), query(first + index % tiles_of_head * queries) {}
};

// Grid: one block per tile of keys of a key head. Shared memory: tiles of k and v, two of q and dy
// with their rows' statistics. Deterministic: a row's sums run over the query heads of the group,
// and over the queries of each in order, by tiles.
template <class T, int kHead, bool kDropout, bool kRules>
__global__ void __launch_bounds__(kFlashThreads) FlashBackwardKeyKernel(BackwardArgs<T> args) {
  using Shape = BackwardShape<kHead>;
  constexpr int kM = Shape::kM, kRows = Shape::kRows;
  constexpr int kN = kRules ? 2 : Shape::kKeyN;  // rules need registers
  constexpr int kQueries = Shape::kColumns;
  DYN_SHARED(T, shared);
  __shared__ float2 pairs[Shape::kStatistics];
  float* statistics = reinterpret_cast<float*>(pairs);  // log-sum-exps and deltas, of two tiles
  T* k_tile = shared;
  T* v_tile = k_tile + Shape::kRowsSize;
  T* q_tiles = v_tile + Shape::kRowsSize;
  const Place at(args.batches, DivideSmall(args.heads, args.group), args.length, kRows, false);
  const int length = args.length, first = static_cast<int>(at.first);
  const int warp_row = 16 * kM * WarpOfBlock(), key = first + warp_row;
  const int first_query = first > length - args.queries ? first : length - args.queries;
  int end_query = length;  // later ones see no key of this block
  if constexpr (kRules) {
    end_query = args.rules.EndQuery(at.batch, first + kRows - 1, first_query + 1, length);
  }
  const int tiles_of_head = (end_query - first_query + kQueries - 1) / kQueries;
  const int tiles = tiles_of_head * static_cast<int>(args.group);
  const auto copy_queries = [&](int index) {
    const QueryTile tile(index, tiles_of_head, at.head * args.group, first_query, kQueries);
    const int left = length - tile.query;
    T* to = q_tiles + index % 2 * 2 * Shape::kColumnsSize;
    CopyTileAsync<kHead, kQueries>(args.q.Head(at.batch, tile.head) + tile.query * args.q.row,
                                   args.q.row, left, args.d, to);
    CopyTileAsync<kHead, kQueries>(args.dy.Head(at.batch, tile.head) + tile.query * args.dy.row,
                                   args.dy.row, left, args.d, to + Shape::kColumnsSize);
    const int i = static_cast<int>(threadIdx.x), row = i % kQueries;
    if (i < 2 * kQueries) {
      const float* from = (i < kQueries ? args.log_sum_exp : args.delta) +
                          (at.batch * args.heads + tile.head) * args.queries + tile.query;
      CpAsync<4>(statistics + index % 2 * Shape::kStatistics + i, row < left ? from + row : from,
                 row < left ? 4 : 0);
    }
    CpAsyncCommit();
  };
  CopyTileAsync<kHead, kRows>(args.k.Head(at.batch, at.head) + first * args.k.row, args.k.row,
                              length - first, args.d, k_tile);
  CopyTileAsync<kHead, kRows>(args.v.Head(at.batch, at.head) + first * args.v.row, args.v.row,
                              length - first, args.d, v_tile);
  copy_queries(0);

  const float scale = (kRules ? args.rules.scale : args.scale) * kLog2E;
  const auto first_key = [&](int query) {
    return args.rules.FirstKey(at.batch, Min(query, length - 1));
  };
  float dk[kM][kHead / 8][4] = {}, dv[kM][kHead / 8][4] = {};
  for (int index = 0; index < tiles; ++index) {
    CpAsyncWait<0>();
    __syncthreads();  // this tile is there, and the other one was read
    if (index + 1 < tiles) copy_queries(index + 1);
    const QueryTile tile(index, tiles_of_head, at.head * args.group, first_query, kQueries);
    const T* q_tile = q_tiles + index % 2 * 2 * Shape::kColumnsSize;
    const T* dy_tile = q_tile + Shape::kColumnsSize;
    const float* log_sum = statistics + index % 2 * Shape::kStatistics;
    const float* delta = log_sum + kQueries;
#pragma unroll 1
    for (int column = 0; column < kQueries; column += 8 * kN) {
      const int query = tile.query + column;
      if (query + 8 * kN <= key) continue;  // sees no key of this warp
      if constexpr (kRules) {
        if (first_key(query) >= key + 16 * kM) continue;
      }
      float s[kM][kN][4];
      MultiplyRows<kHead>(
          [&](int m, int i, uint32_t(&a)[4]) { LoadA<kHead>(k_tile, warp_row + 16 * m, i, a); },
          q_tile, column, s);
      if constexpr (kRules) CapProducts(args.rules, s);
      // Queries past the last: their rows are zeros, and so are dp, delta and what p is multiplied
      // by.
      const int distance = query + 2 * FlashT() - key - FlashGroup();
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float2 sums =
            *reinterpret_cast<const float2*>(log_sum + column + 8 * n + 2 * FlashT());
        const float shift[2] = {sums.x * kLog2E, sums.y * kLog2E};
        [[maybe_unused]] int hidden[2];  // rows of the lane that its queries do not see
        if constexpr (kRules) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            hidden[i] = first_key(query + 8 * n + 2 * FlashT() + i) - key - FlashGroup();
          }
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            bool seen = 16 * m + i / 2 * 8 <= distance + 8 * n + i % 2;
            if constexpr (kRules) {
              seen = seen && 16 * m + i / 2 * 8 >= hidden[i % 2];
            }
            s[m][n][i] = seen ? FastExp2(fmaf(s[m][n][i], scale, -shift[i % 2])) : 0.0f;
          }
        }
      }
      uint32_t kept[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        kept[m] = ~0u;
        if constexpr (kDropout) {
          kept[m] = FlashMask(args.dropout, at.batch, tile.head)
                        .template KeptOfKeys<kN>(key + 16 * m, query);
        }
      }
      const auto is_kept = [&](int m, int n, int i) {
        return !kDropout || (kept[m] >> (4 * n + i) & 1) != 0;
      };
      const auto dropped = [&](int m, int n, int i) {
        return is_kept(m, n, i) ? s[m][n][i] : 0.0f;
      };
      MultiplyAddColumns<kHead, kN>(dropped, dy_tile, column, dv);
      // Probabilities become ds, 16 queries at a time: there are no registers for more.
#pragma unroll
      for (int part = 0; part < kN; part += 2) {
        float dp[kM][2][4];
        MultiplyRows<kHead>(
            [&](int m, int i, uint32_t(&a)[4]) { LoadA<kHead>(v_tile, warp_row + 16 * m, i, a); },
            dy_tile, column + 8 * part, dp);
#pragma unroll
        for (int n = part; n < part + 2; ++n) {
          const float2 deltas =
              *reinterpret_cast<const float2*>(delta + column + 8 * n + 2 * FlashT());
          [[maybe_unused]] const float2 sums =
              *reinterpret_cast<const float2*>(log_sum + column + 8 * n + 2 * FlashT());
#pragma unroll
          for (int m = 0; m < kM; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float g = dp[m][n - part][i];
              if constexpr (kDropout) g = is_kept(m, n, i) ? g * args.dropout.keep_scale : 0.0f;
              const float p = s[m][n][i];
              s[m][n][i] *= g - (i % 2 == 0 ? deltas.x : deltas.y);
              if constexpr (kRules) {
                // There are no registers for scores, but these follow from probabilities.
                const float log = __logf(fmaxf(p, 1.17549435e-38f));
                s[m][n][i] *= FlashCapSlope(args.rules, log + (i % 2 == 0 ? sums.x : sums.y));
              }
            }
          }
        }
      }
      const auto ds = [&](int m, int n, int i) { return s[m][n][i]; };
      MultiplyAddColumns<kHead, kN>(ds, q_tile, column, dk);
    }
  }
  float dk_factor[kM][2], dv_factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    dk_factor[m][0] = dk_factor[m][1] = args.scale;
    dv_factor[m][0] = dv_factor[m][1] = kDropout ? args.dropout.keep_scale : 1.0f;
  }
  StoreFlashRows<kHead>(dk, dk_factor, k_tile + warp_row * kFlashStride<kHead>,
                        args.dk.Head(at.batch, at.head) + key * args.dk.row, args.dk.row,
                        length - key, args.d, args.accumulate_k);
  StoreFlashRows<kHead>(dv, dv_factor, v_tile + warp_row * kFlashStride<kHead>,
                        args.dv.Head(at.batch, at.head) + key * args.dv.row, args.dv.row,
                        length - key, args.d, args.accumulate_v);
}

// A gradient's destination, or memory that flash kernels can write and whose contents go there
// afterwards.
template <class T>
class Destination {
 public:
  Destination(const Tensor& to, bool accumulate) : to_(to), tensor_(to) {
    if (HeadTensor<T>(to).Aligned(to.dim(3))) return;
    tensor_ = accumulate ? to.Clone() : Tensor::Empty(to.shape(), to.dtype(), to.device());
    copied_ = true;
  }
  HeadTensor<T> get(int64_t first = 0) const { return HeadTensor<T>(tensor_, first); }
  void Finish() const {
    if (copied_) to_.CopyFrom(tensor_);
  }

 private:
  Tensor to_, tensor_;
  bool copied_ = false;
};

template <class T>
void Run(Stream stream, const AttentionBackwardArgs& args) {
  const Tensor q = FlashInput<T>(args.q), k = FlashInput<T>(args.k), v = FlashInput<T>(args.v);
  const Tensor y = FlashInput<T>(args.y), dy = FlashInput<T>(args.dy);
  const int64_t batches = q.dim(0), queries = q.dim(1), heads = q.dim(2), d = q.dim(3);
  const int64_t rows = CountRows(q), length = k.dim(1), first = FirstQuery(q, k);
  const Tensor delta = Tensor::Empty({batches, heads, queries}, DType::kF32, q.device());
  const Destination<T> dq(args.dq, args.accumulate_q), dk(args.dk, args.accumulate_k),
      dv(args.dv, args.accumulate_v);
  BackwardArgs<T> a;
  a.q = HeadTensor<const T>(q, first);
  a.k = HeadTensor<const T>(k);
  a.v = HeadTensor<const T>(v);
  a.dy = HeadTensor<const T>(dy, first);
  a.dq = dq.get(first);
  a.dk = dk.get();
  a.dv = dv.get();
  a.log_sum_exp = Data<float>(args.log_sum_exp) - first;
  a.delta = Data<float>(delta) - first;
  a.batches = batches;
  a.heads = heads;
  a.group = heads / k.dim(2);
  a.queries = static_cast<int>(queries);
  a.length = static_cast<int>(length);
  a.d = static_cast<int>(d);
  a.scale = static_cast<float>(args.scores.scale);
  a.accumulate_q = args.accumulate_q;
  a.accumulate_k = args.accumulate_k;
  a.accumulate_v = args.accumulate_v;
  a.rules = AttentionRules(args.scores, queries, first);
  a.dropout = AttentionDropoutArgs(args.dropout);
  const LaunchName name("flash_attention_backward", q, k);
  const bool drop = a.dropout.step != nullptr;
  DispatchFlash(d, drop, args.scores, [&](auto head, auto dropout, auto rules) {
    constexpr int kHead = decltype(head)::value;
    constexpr bool kDropout = decltype(dropout)::value, kRules = decltype(rules)::value;
    using Shape = BackwardShape<kHead>;
    Launch(name, FlashDeltaKernel<T, kHead>, Blocks(rows, kFlashThreads * 8 / kHead), kFlashThreads,
           0, stream, Data<T>(y), Data<T>(dy), rows, queries, heads, a.d, Data<float>(delta));
    const int64_t query_blocks = batches * heads * DivideUp(queries, Shape::kRows);
    const int64_t key_blocks = batches * k.dim(2) * DivideUp(length, Shape::kRows);
    Launch(name, FlashBackwardQueryKernel<T, kHead, kDropout, kRules>, Blocks(query_blocks, 1),
           kFlashThreads, Shape::kBytes, stream, a);
    Launch(name, FlashBackwardKeyKernel<T, kHead, kDropout, kRules>, Blocks(key_blocks, 1),
           kFlashThreads, Shape::kBytes, stream, a);
  });
  for (const Destination<T>* destination : {&dq, &dk, &dv}) destination->Finish();
}

}  // namespace

void FlashAttentionBackward(Stream stream, const AttentionBackwardArgs& args) {
  DispatchFlashType(args.q.dtype(), [&]<class T>(TypeTag<T>) { Run<T>(stream, args); });
}

}  // namespace lockstep::cuda
