// Flash attention's building blocks on tensor cores (mma m16n8k16, sums in f32).
//
// A block is four warps. It owns kRows rows (queries, or keys) of one head, 16 kM to a warp, whose
// results stay in registers, and walks over tiles of columns (keys, or queries). A warp's matrix of
// scores s[kM][kN][4] lies as mma's results do: with group = lane / 4 and t = lane % 4, s[m][n][i]
// is row 16 m + group + 8 (i / 2), column 8 n + 2 t + i % 2.
#pragma once

#include "kernels/attention/attention_tile.cuh"
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/mma.cuh"

namespace lockstep::cuda {

inline constexpr int kFlashWarps = 4, kFlashThreads = 32 * kFlashWarps;

__device__ inline int FlashLane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ inline int FlashGroup() { return FlashLane() / 4; }
__device__ inline int FlashT() { return FlashLane() % 4; }

// ---- Tiles in shared memory: rows of kHead numbers. ----

// Numbers from one row to the next: 8 more, so that the eight lanes that read 16 bytes of eight
// neighbouring rows meet different banks, and every address is a per-lane one plus a constant.
template <int kHead>
inline constexpr int kFlashStride = kHead + 8;

// Starts to copy rows [0, n) of d numbers, a multiple of 8, to a tile of kRows rows, with zeros to
// the right and below. The caller commits and waits.
template <int kHead, int kRows, class T>
__device__ inline void CopyTileAsync(const T* from, int64_t stride, int n, int d, T* tile) {
  constexpr int kPieces = kHead / 8, kStep = kFlashThreads / kPieces;
  static_assert(kRows % kStep == 0);
  const int first = static_cast<int>(threadIdx.x) / kPieces;
  const int column = static_cast<int>(threadIdx.x) % kPieces * 8;
  const T* source = from + first * stride + column;
  T* target = tile + first * kFlashStride<kHead> + column;
  const int rows = column < d ? n - first : 0;
#pragma unroll
  for (int row = 0; row < kRows; row += kStep) {
    CpAsync<16>(target + row * kFlashStride<kHead>, source, row < rows ? 16 : 0);
    source += kStep * stride;
  }
}

// ---- Fragments of mma's operands. ----

// Rows row ... row + 15, numbers 16 k ... 16 k + 15 of a tile as A.
template <int kHead, class T>
__device__ inline void LoadA(const T* tile, int row, int k, uint32_t (&a)[4]) {
  const int lane = FlashLane();
  const T* mine = tile + lane % 16 * kFlashStride<kHead> + lane / 16 * 8;
  LoadMatrix<4>(a, mine + row * kFlashStride<kHead> + 16 * k);
}

// The same as the transpose of B, for two products: columns 0-7 by b[0], b[1], the others by b[2],
// b[3].
template <int kHead, class T>
__device__ inline void LoadBTransposed(const T* tile, int row, int k, uint32_t (&b)[4]) {
  const int lane = FlashLane();
  const T* mine = tile + (lane % 8 + lane / 16 * 8) * kFlashStride<kHead> + lane / 8 % 2 * 8;
  LoadMatrix<4>(b, mine + row * kFlashStride<kHead> + 16 * k);
}

// Rows row ... row + 15, numbers 16 n ... 16 n + 15 of a tile as B, for two products likewise.
template <int kHead, class T>
__device__ inline void LoadB(const T* tile, int row, int n, uint32_t (&b)[4]) {
  const int lane = FlashLane();
  const T* mine = tile + lane % 16 * kFlashStride<kHead> + lane / 16 * 8;
  LoadMatrix<4, true>(b, mine + row * kFlashStride<kHead> + 16 * n);
}

// c += a times the half of b.
template <class T>
__device__ inline void MmaHalf(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                               int half) {
  const uint32_t pair[2] = {half == 0 ? b[0] : b[2], half == 0 ? b[1] : b[3]};
  MmaM16N8K16<T>(c, a, pair, c);
}

template <class T>
__device__ inline uint32_t PackPair(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  }
  return bits;
}

// ---- Products. ----

// s += rows of `a` (by tensor core fragments that the caller loads: load_a(m, k, fragment)) times
// rows b_row ... b_row + 8 kN - 1 of the tile b.
template <int kHead, int kM, int kN, class LoadRows, class T>
__device__ inline void MultiplyRows(const LoadRows& load_a, const T* b_tile, int b_row,
                                    float (&s)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_a(m, k, a[m]);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b[4];
      LoadBTransposed<kHead>(b_tile, b_row + 8 * n, k, b);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        MmaHalf<T>(s[m][n], a[m], b, 0);
        MmaHalf<T>(s[m][n + 1], a[m], b, 1);
      }
    }
  }
}

// out += s, rounded to T, times rows row ... row + 8 kN - 1 of the tile; s(m, n, i) is that
// element of s[kM][kN][4].
template <int kHead, int kN, int kM, class Scores, class T>
__device__ inline void MultiplyAddColumns(const Scores& s, const T* tile, int row,
                                          float (&out)[kM][kHead / 8][4]) {
#pragma unroll
  for (int k = 0; k < kN / 2; ++k) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2, pair = 2 * (i % 2);
        a[m][i] = PackPair<T>(s(m, n, pair), s(m, n, pair + 1));
      }
    }
#pragma unroll
    for (int n = 0; n < kHead / 16; ++n) {
      uint32_t b[4];
      LoadB<kHead>(tile, row + 16 * k, n, b);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        MmaHalf<T>(out[m][2 * n], a[m], b, 0);
        MmaHalf<T>(out[m][2 * n + 1], a[m], b, 1);
      }
    }
  }
}

// ---- Soft caps, windows and documents. ----

// tanh within 2e-7, absolute.
__device__ inline float FastTanh(float x) {
  return 1 - __fdividef(2, 1 + FastExp2(x * 2.8853900817779268f));
}

// Products q . k become scores under the soft cap, if there is one: to be scaled by rules.scale.
template <int kM, int kN>
__device__ inline void CapProducts(const AttentionRules& rules, float (&s)[kM][kN][4]) {
  if (rules.softcap == 0) return;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = rules.softcap * FastTanh(s[m][n][i] * rules.to_tanh);
    }
  }
}

// The derivative of a score under the cap by the one above; 1 without a cap.
__device__ inline float FlashCapSlope(const AttentionRules& rules, float s) {
  const float t = s * rules.from_tanh;
  return fmaf(-t, t, 1.0f);
}

// The first keys of a warp's rows, which are queries; without rules nothing.
template <int kM, bool kRules>
struct FlashFirstKeys {
  __device__ FlashFirstKeys(const AttentionRules&, int64_t, int, int) {}
  __device__ bool SeenUpTo(int) const { return true; }
  __device__ bool See(int, int, int) const { return true; }
};
template <int kM>
struct FlashFirstKeys<kM, true> {
  int least, most;  // of the warp
  int key[kM][2];   // of the lane's rows

  // Rows after the last query have its.
  __device__ FlashFirstKeys(const AttentionRules& rules, int64_t batch, int query, int length) {
    const auto at = [&](int row) { return rules.FirstKey(batch, Min(query + row, length - 1)); };
    least = at(0);
    most = at(16 * kM - 1);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) key[m][h] = at(16 * m + 8 * h + FlashGroup());
    }
  }
  // Whether some row sees keys before `end`, apart from the causal mask.
  __device__ bool SeenUpTo(int end) const { return least < end; }
  // Whether the row of s[m][.][i] sees this key, apart from the causal mask.
  __device__ bool See(int m, int i, int column) const { return column >= key[m][i / 2]; }
};

// ---- Results. ----

// Stores the warp's results, times factor[m][h] in rows 16 m + group + 8 h, to rows [0, n) of d
// numbers, by way of `tile`: 16 kM rows that only this warp uses, and no longer needs.
template <int kHead, int kM, class T>
__device__ inline void StoreFlashRows(const float (&out)[kM][kHead / 8][4],
                                      const float (&factor)[kM][2], T* tile, T* to, int64_t stride,
                                      int n, int d, bool accumulate) {
  constexpr int kPieces = kHead / 8, kStride = kFlashStride<kHead>, kStep = kWarpSize / kPieces;
  const int first = FlashLane() / kPieces, column = FlashLane() % kPieces * 8;
  const int rows = column < d ? n - first : 0;
  T* staged = tile + first * kStride + column;
  to += first * stride + column;
  __syncwarp();  // the tile was read
  if (accumulate) {
    for (int row = 0; row < 16 * kM && row < rows; row += kStep) {
      StoreShared(staged + row * kStride, Load(to + row * stride));
    }
    __syncwarp();
  }
  T* pairs = tile + FlashGroup() * kStride + 2 * FlashT();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int j = 0; j < 2 * kPieces; ++j) {
      const int piece = j / 2, half = j % 2;
      T* pair = pairs + (16 * m + 8 * half) * kStride + 8 * piece;
      float low = out[m][piece][2 * half] * factor[m][half];
      float high = out[m][piece][2 * half + 1] * factor[m][half];
      if (accumulate) {
        low += ToFloat(pair[0]);
        high += ToFloat(pair[1]);
      }
      *reinterpret_cast<uint32_t*>(pair) = PackPair<T>(low, high);
    }
  }
  __syncwarp();
  for (int row = 0; row < 16 * kM && row < rows; row += kStep) {
    Store(to + row * stride, Load(staged + row * kStride));
  }
}

// ---- Dropout. ----

// The mask of one head of one sample, for scores as mma leaves them. Random numbers come in blocks
// of four neighbouring keys: each lane makes one block per four of its scores and passes it to the
// lanes that need it.
class FlashMask {
 public:
  __device__ FlashMask(const AttentionDropoutArgs& args, int64_t batch, int64_t head)
      : threshold_(args.threshold),
        random_(args.step->seed),
        stream_(AttentionDropoutStream(args.site, args.step->step, args.step->first_sample + batch,
                                       args.first_head + head)) {}

  // Bit 4 n + i says whether s[n][i] is kept, for rows query ... query + 15 and columns key ... key
  // + 8 kN - 1. Whole warps call it.
  template <int kN>
  __device__ uint32_t KeptOfQueries(int query, int key) const {
    const int t = FlashT();
    const bool odd = t % 2 == 1;  // even lanes make the blocks of rows 0-7, odd ones those of 8-15
    const int row = query + FlashGroup() + (odd ? 8 : 0);
    uint32_t own = 0;
#pragma unroll 1
    for (int n = 0; n < kN; ++n) own |= Kept(row, key + 8 * n + t / 2 * 4) << (4 * n);
    const uint32_t other = __shfl_xor_sync(kFullWarp, own, 1);
    constexpr uint32_t kLow = 0x33333333u;
    return odd ? (other >> 2 & kLow) | (own & ~kLow) : (own & kLow) | (other & kLow) << 2;
  }

  // The same where rows are keys and columns are queries.
  template <int kN>
  __device__ uint32_t KeptOfKeys(int key, int query) const {
    const int group = FlashGroup(), slot = group % 4;
    // Lane `slot` makes the block of score i = slot of a product's four.
    const int row = key + group / 4 * 4 + slot / 2 * 8;
    uint32_t own = 0;
#pragma unroll 1
    for (int n = 0; n < kN; ++n) {
      own |= Kept(query + 8 * n + 2 * FlashT() + slot % 2, row) << (4 * n);
    }
    uint32_t kept = 0;
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const uint32_t other = __shfl_xor_sync(kFullWarp, own, 4 * x);
      kept |= (other >> slot & 0x11111111u) << (slot ^ x);
    }
    return kept;
  }

 private:
  // Bits 0-3: keys key ... key + 3, a multiple of 4.
  __device__ uint32_t Kept(int query, int key) const {
    const uint64_t block = static_cast<uint64_t>(query) << 32 | static_cast<uint32_t>(key) >> 2;
    const Philox::Block random = random_(stream_, block);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bits |= static_cast<uint32_t>(DropoutKeeps(random.v[i], threshold_)) << i;
    }
    return bits;
  }

  uint32_t threshold_;
  Philox random_;
  uint64_t stream_;
};

// ---- Host. ----

// x, or a copy of it in memory that flash kernels can read 16 bytes at a time.
template <class T>
Tensor FlashInput(const Tensor& x) {
  return HeadTensor<const T>(x).Aligned(x.dim(3)) ? x : x.Clone();
}

// Calls f with the TypeTag of a 16-bit dtype.
template <class F>
void DispatchFlashType(DType dtype, F&& f) {
  if (dtype == DType::kBF16) return f(TypeTag<bf16>());
  LS_INVARIANT(dtype == DType::kF16, "flash attention of ", dtype);
  f(TypeTag<f16>());
}

// Calls f(kHead, kDropout, kRules) as std::integral_constants.
template <class F>
void DispatchFlash(int64_t d, bool dropout, const AttentionScores& scores, F&& f) {
  DispatchBool(dropout, [&](auto drop) {
    DispatchBool(!scores.plain(), [&](auto rules) {
      if (d <= 64) {
        f(std::integral_constant<int, 64>(), drop, rules);
      } else {
        f(std::integral_constant<int, 128>(), drop, rules);
      }
    });
  });
}

}  // namespace lockstep::cuda
