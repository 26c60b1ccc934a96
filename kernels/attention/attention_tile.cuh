// Tiles of attention on CUDA: products of small matrices in shared memory, in f32.
//
// A block is 16 x 16 threads. It owns kRows rows (queries, or keys), whose results stay in
// registers, and walks over tiles of kColumns columns (keys, or queries). Thread (y, x) has rows
// y kM ... y kM + kM - 1; of a tile of scores the columns x, x + 16, ..., and likewise of a
// result's kHead numbers.
#pragma once

#include "kernels/attention/attention_kernels.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/reduce.cuh"

namespace lockstep::cuda {

inline constexpr int kSide = 16;
inline constexpr int kAttentionThreads = kSide * kSide;

// The sizes for heads of up to kHead numbers; kM: rows of a thread.
template <int kHead_, int kM_ = kHead_ <= 128 ? 4 : 2>
struct AttentionTile {
  static constexpr int kHead = kHead_, kM = kM_;
  static constexpr int kN = kHead <= 128 ? 2 : 1;  // columns of scores of a thread
  static constexpr int kOut = kHead / kSide;       // columns of a result of a thread
  static constexpr int kRows = kSide * kM, kColumns = kSide * kN;
  // Elements from one row to the next in shared memory: 4 more, so that eight lanes that read 16
  // bytes of different rows meet different banks.
  static constexpr int kStride = kHead + 4, kScoreStride = kColumns + 4;
  static constexpr int kRowsSize = kRows * kStride, kColumnsSize = kColumns * kStride;
  static constexpr int kScoresSize = kRows * kScoreStride;
};

__device__ inline int TileX() { return static_cast<int>(threadIdx.x) % kSide; }
__device__ inline int TileY() { return static_cast<int>(threadIdx.x) / kSide; }

// A tensor [B, T, heads, D] that may be a view, except in its last dimension.
template <class T>
struct HeadTensor {
  T* data = nullptr;
  int64_t batch = 0, row = 0, head = 0;  // strides

  HeadTensor() = default;
  // Rows count from `first` on: kernels read none before it.
  explicit HeadTensor(const Tensor& x, int64_t first = 0)
      : data(Data<std::remove_const_t<T>>(x) - first * x.strides()[1]),
        batch(x.strides()[0]),
        row(x.strides()[1]),
        head(x.strides()[2]) {}
  __device__ T* Head(int64_t b, int64_t h) const { return data + b * batch + h * head; }
  // Whether rows of d elements can be accessed in packs.
  bool Aligned(int64_t d) const {
    constexpr int N = kPackSize<std::remove_const_t<T>>;
    return IsAligned16(data) && d % N == 0 && batch % N == 0 && row % N == 0 && head % N == 0;
  }
};

// How many rows q [B, T, H, D] has. Kernels divide row indices in 32 bits.
inline int64_t CountRows(const Tensor& q) {
  const int64_t rows = q.dim(0) * q.dim(1) * q.dim(2);
  LS_CHECK(rows <= UINT32_MAX, "attention on CUDA takes up to 2^32 - 1 queries, got ", rows);
  return rows;
}

// The queries are those of the last positions of the keys.
inline int64_t FirstQuery(const Tensor& q, const Tensor& k) { return k.dim(1) - q.dim(1); }

// What a block works on: a tile of rows of one head of one sample. The last rows see the most keys
// and go first; in the backward of keys the first rows do, which the most queries see.
struct Place {
  int64_t batch, head, first;

  // `length` positions from `begin` on.
  __device__ Place(int64_t batches, int64_t heads, int64_t length, int rows, bool last_first,
                   int64_t begin = 0) {
    // There are fewer than 2^31 blocks (Blocks() checks it), and so fewer samples and heads.
    const int64_t block = blockIdx.x, pair = DivideSmall(block, heads);
    const int64_t tile = DivideSmall(pair, batches), tiles = DivideUp(length, rows);
    batch = pair - tile * batches;
    head = block - pair * heads;
    first = begin + (last_first ? tiles - 1 - tile : tile) * rows;
  }
};

// Copies rows [0, n) of d elements, times `factor`, to a tile of kCount rows in shared memory, with
// zeros to the right and below. The caller synchronises.
template <class Tile, int kCount, class T>
__device__ inline void LoadTile(const T* from, int64_t stride, int64_t n, int d, bool aligned,
                                float factor, float* tile) {
  constexpr int N = kPackSize<T>, kPacks = Tile::kHead / N;
  for (int i = static_cast<int>(threadIdx.x); i < kCount * kPacks; i += kAttentionThreads) {
    const int row = i / kPacks, at = i % kPacks * N;
    float* to = tile + row * Tile::kStride + at;
    const int count = row < n ? Min(d - at, N) : 0;
    const T* p = from + row * stride + at;
    const Packed<T> x = aligned && count == N ? Load(p) : LoadSome(p, count, Convert<T>(0.0f));
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      *reinterpret_cast<float4*>(to + k) =
          make_float4(ToFloat(x[k]) * factor, ToFloat(x[k + 1]) * factor,
                      ToFloat(x[k + 2]) * factor, ToFloat(x[k + 3]) * factor);
    }
  }
}

// s[i][j] = the product of row y kM + i of `rows` and row x + 16 j of `columns`, over d elements
// (rounded up to a multiple of 4: zeros follow).
template <class Tile>
__device__ inline void Multiply(const float* rows, const float* columns, int d,
                                float (&s)[Tile::kM][Tile::kN]) {
  const float* a = rows + TileY() * Tile::kM * Tile::kStride;
  const float* b = columns + TileX() * Tile::kStride;
#pragma unroll
  for (int i = 0; i < Tile::kM; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kN; ++j) s[i][j] = 0;
  }
  // Less for narrow heads: unrolled further, nvcc keeps more of the tiles live than registers hold.
  [[maybe_unused]] constexpr int kUnroll = Tile::kHead == 32 ? 2 : 4;
#pragma unroll kUnroll
  for (int l = 0; l < d; l += 4) {
    float4 u[Tile::kM], v[Tile::kN];
#pragma unroll
    for (int i = 0; i < Tile::kM; ++i) {
      u[i] = *reinterpret_cast<const float4*>(a + i * Tile::kStride + l);
    }
#pragma unroll
    for (int j = 0; j < Tile::kN; ++j) {
      v[j] = *reinterpret_cast<const float4*>(b + j * kSide * Tile::kStride + l);
    }
#pragma unroll
    for (int i = 0; i < Tile::kM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kN; ++j) {
        s[i][j] = fmaf(u[i].x, v[j].x, s[i][j]);
        s[i][j] = fmaf(u[i].y, v[j].y, s[i][j]);
        s[i][j] = fmaf(u[i].z, v[j].z, s[i][j]);
        s[i][j] = fmaf(u[i].w, v[j].w, s[i][j]);
      }
    }
  }
}

// Stores the thread's scores to a tile in shared memory, for MultiplyAdd by the same half warp.
template <class Tile>
__device__ inline void StoreScores(const float (&s)[Tile::kM][Tile::kN], float* scores) {
#pragma unroll
  for (int i = 0; i < Tile::kM; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kN; ++j) {
      scores[(TileY() * Tile::kM + i) * Tile::kScoreStride + TileX() + kSide * j] = s[i][j];
    }
  }
}

// out[i][j] += the product of row y kM + i of `scores` with column x + 16 j of `columns`.
template <class Tile>
__device__ inline void MultiplyAdd(const float* scores, const float* columns,
                                   float (&out)[Tile::kM][Tile::kOut]) {
  const float* a = scores + TileY() * Tile::kM * Tile::kScoreStride;
  const float* b = columns + TileX();
#pragma unroll 4
  for (int l = 0; l < Tile::kColumns; ++l) {
    float u[Tile::kM];
#pragma unroll
    for (int i = 0; i < Tile::kM; ++i) u[i] = a[i * Tile::kScoreStride + l];
#pragma unroll
    for (int j = 0; j < Tile::kOut; ++j) {
      const float v = b[l * Tile::kStride + kSide * j];
#pragma unroll
      for (int i = 0; i < Tile::kM; ++i) out[i][j] = fmaf(u[i], v, out[i][j]);
    }
  }
}

// Stores the thread's results, times factor[i] in its row i, to rows [0, n) of d elements.
template <class Tile, class T>
__device__ inline void StoreRows(const float (&out)[Tile::kM][Tile::kOut],
                                 const float (&factor)[Tile::kM], T* to, int64_t stride, int64_t n,
                                 int d, bool accumulate) {
#pragma unroll
  for (int i = 0; i < Tile::kM; ++i) {
    const int row = TileY() * Tile::kM + i;
    if (row >= n) break;
#pragma unroll
    for (int j = 0; j < Tile::kOut; ++j) {
      const int column = TileX() + kSide * j;
      if (column >= d) break;
      T& x = to[row * stride + column];
      const float v = out[i][j] * factor[i];
      x = Convert<T>(accumulate ? ToFloat(x) + v : v);
    }
  }
}

// ---- Soft caps, windows and documents. ----

// AttentionScores without the scale, for the instances of kernels that have them (kRules).
struct AttentionRules {
  float softcap = 0;                 // 0: none
  float to_tanh = 0, from_tanh = 0;  // scale / softcap and 1 / softcap, or 0
  float scale = 1;                   // of what a cap leaves: 1 with a cap
  int window = INT32_MAX;
  const int* first_key = nullptr;  // [B, S], from position 0 on; null: none
  int64_t queries = 0;             // S

  AttentionRules() = default;
  // `first`: the first query's position.
  AttentionRules(const AttentionScores& scores, int64_t queries, int64_t first)
      : scale(static_cast<float>(scores.scale)), queries(queries) {
    if (scores.softcap > 0) {
      softcap = static_cast<float>(scores.softcap);
      to_tanh = static_cast<float>(scores.scale / scores.softcap);
      from_tanh = static_cast<float>(1 / scores.softcap);
      scale = 1;
    }
    if (scores.window > 0) window = static_cast<int>(Min(scores.window, int64_t{INT32_MAX}));
    if (scores.first_key.defined()) first_key = Data<int>(scores.first_key) - first;
  }

  // The first key that query i of sample b sees. Every query sees its own.
  __device__ int FirstKey(int64_t b, int i) const {
    const int of_document = first_key == nullptr ? 0 : Min(first_key[b * queries + i], i);
    const int of_window = i - window + 1;
    return MaxOp()(0, MaxOp()(of_document, of_window));
  }
  // The first query from i on that sees no key up to `key`, and so no later one does; or `length`.
  __device__ int EndQuery(int64_t b, int key, int i, int length) const {
    while (i < length) {
      const int middle = i + (length - i) / 2;
      if (FirstKey(b, middle) <= key) {
        i = middle + 1;
      } else {
        length = middle;
      }
    }
    return i;
  }
};

// The first keys of a thread's rows, which are queries; without rules nothing.
template <class Tile, bool kRules>
struct FirstKeys {
  __device__ FirstKeys(const AttentionRules&, int64_t, int64_t, int64_t) {}
  __device__ bool See(int, int64_t) const { return true; }
};
template <class Tile>
struct FirstKeys<Tile, true> {
  int key[Tile::kM];

  // Rows after the last query have its.
  __device__ FirstKeys(const AttentionRules& rules, int64_t batch, int64_t first, int64_t length) {
#pragma unroll
    for (int i = 0; i < Tile::kM; ++i) {
      const int64_t query = Min(first + TileY() * Tile::kM + i, length - 1);
      key[i] = rules.FirstKey(batch, static_cast<int>(query));
    }
  }
  __device__ bool See(int row, int64_t column) const { return column >= key[row]; }
};

// Scores s become softcap tanh(s / softcap).
template <int kM, int kN>
__device__ inline void CapScores(float softcap, float (&s)[kM][kN]) {
  if (softcap == 0) return;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) s[i][j] = softcap * tanhf(s[i][j] / softcap);
  }
}

// The derivative of a capped score by the score; 1 without a cap.
__device__ inline float CapSlope(float softcap, float capped) {
  const float t = softcap == 0 ? 0.0f : capped / softcap;
  return 1 - t * t;
}

// ---- Dropout. ----

struct AttentionDropoutArgs {
  const StepValues* step = nullptr;  // null: none
  uint64_t site = 0;
  int64_t first_head = 0;
  uint32_t threshold = 0;
  float keep_scale = 1;  // of kept probabilities

  AttentionDropoutArgs() = default;
  explicit AttentionDropoutArgs(const AttentionDropout& dropout) {
    if (!dropout.step_values.defined()) return;
    step = static_cast<const StepValues*>(dropout.step_values.raw_data());
    site = dropout.site;
    first_head = dropout.first_head;
    threshold = DropoutThreshold(dropout.p);
    keep_scale = static_cast<float>(1 / (1 - dropout.p));
  }
};

// The mask of one head of one sample, for the scores s[kM][kN] of a thread, all at once and in a
// loop that is not unrolled: ten rounds of random numbers for each would otherwise fill the
// registers.
class HeadMask {
 public:
  __device__ HeadMask(const AttentionDropoutArgs& args, int64_t batch, int64_t head)
      : on_(args.step != nullptr),
        threshold_(args.threshold),
        keep_scale_(args.keep_scale),
        random_(on_ ? args.step->seed : 0),
        stream_(on_ ? AttentionDropoutStream(args.site, args.step->step,
                                             args.step->first_sample + batch,
                                             args.first_head + head)
                    : 0) {}

  // Bit kN i + j says whether s[i][j] is kept, where rows are queries, from `query` on, and columns
  // are keys key, key + 16, ...
  template <class Tile>
  __device__ uint32_t KeptOfQueries(int64_t query, int64_t key) const {
    return Kept<Tile>([=, this](int i, int j) {
      return AttentionKeeps(random_, stream_, query + i, key + kSide * j, threshold_);
    });
  }

  // The same where rows are keys and columns are queries.
  template <class Tile>
  __device__ uint32_t KeptOfKeys(int64_t key, int64_t query) const {
    return Kept<Tile>([=, this](int i, int j) {
      return AttentionKeeps(random_, stream_, query + kSide * j, key + i, threshold_);
    });
  }

  // What the probability with this bit is multiplied by.
  __device__ float Factor(uint32_t kept, int bit) const {
    return (kept >> bit & 1) != 0 ? keep_scale_ : 0.0f;
  }

 private:
  template <class Tile, class Keeps>
  __device__ uint32_t Kept(const Keeps& keeps) const {
    if (!on_) return ~0u;
    uint32_t kept = 0;
#pragma unroll 1
    for (int bit = 0; bit < Tile::kM * Tile::kN; ++bit) {
      kept |= static_cast<uint32_t>(keeps(bit / Tile::kN, bit % Tile::kN)) << bit;
    }
    return kept;
  }

  bool on_;
  uint32_t threshold_;
  float keep_scale_;
  Philox random_;
  uint64_t stream_;
};

// Calls f(AttentionTile<kHead>()) with the smallest kHead that holds d.
template <class F>
void DispatchHeadSize(int64_t d, F&& f) {
  if (d <= 32) return f(AttentionTile<32>());
  if (d <= 64) return f(AttentionTile<64>());
  if (d <= 128) return f(AttentionTile<128>());
  LS_CHECK(d <= kAttentionMaxHead, "attention on CUDA takes heads of up to ", kAttentionMaxHead,
           " elements, got ", d, ": use more heads");
  f(AttentionTile<kAttentionMaxHead>());
}

}  // namespace lockstep::cuda
