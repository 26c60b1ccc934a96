// A block's tile of a matrix product on tensor cores: bf16, f16, or f32 as TF32, summed in f32.
//
// A block is four warps. Operands come in steps of 64 or 128 bytes of k, copied two steps ahead. An
// element is a chain of mma instructions over k in order, from zero: its bits depend only on its
// row of A, its column of B and on k, not on the tile's size, on what else is in it or on
// alignment.
#pragma once

#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/shared.cuh"

namespace lockstep::cuda {

inline constexpr int kMmaThreads = 128;

// An operand of a product, from the tile's first element on: `outer` of A's rows, or B's columns,
// which are rows of memory if kAlong (along k), else its columns.
template <class T, bool kAlong>
struct MmaOperand {
  const T* data;
  int64_t stride;  // elements from one row of memory to the next
  int outer;
};

// Where a step of kOuter rows of A, or columns of B, lies in shared memory: kRows rows of 16-byte
// pieces, whose order differs from row to row, so that the lanes that read or write at a time meet
// different banks. A lane finds its own pieces once; all others are at constant distances.
template <class T, bool kAlong, int kOuter, int kStepBytes>
struct MmaTile {
  static constexpr int kDepth = kStepBytes / static_cast<int>(sizeof(T)), kPack = kPackSize<T>;
  static constexpr int kMmas = kStepBytes / 32;  // as deep as an mma instruction
  static constexpr int kRows = kAlong ? kOuter : kDepth;
  static constexpr int kPieces = (kAlong ? kDepth : kOuter) / kPack, kPitch = 16 * kPieces;
  static constexpr int kBytes = kRows * kPitch;

  // ---- From global memory. ----

  // The thread's share of the copies: a column of pieces, every kEvery-th row.
  static constexpr int kEvery = kMmaThreads / kPieces, kCopies = kRows / kEvery;
  static_assert(kRows % kEvery == 0);

  template <bool kAligned>
  class Copier {
   public:
    __device__ Copier(const MmaOperand<T, kAlong>& from, int depth) {
      const int thread = static_cast<int>(threadIdx.x);
      const int row = thread / kPieces, piece = thread % kPieces;
      source_ = from.data + row * from.stride + piece * kPack;
      every_ = kEvery * from.stride;
      advance_ = kAlong ? kDepth : kDepth * from.stride;
      rows_ = (kAlong ? from.outer : depth) - row;
      columns_ = (kAlong ? depth : from.outer) - piece * kPack;
      target_ = At(row, piece);
    }

    // Starts to copy the next tile, with zeros beyond the operand's ends. The caller commits.
    __device__ void Copy(unsigned char* tile) {
      const T* from = source_;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int count = i * kEvery < rows_ ? columns_ : 0;
        unsigned char* to = tile + target_ + i * kEvery * kPitch;
        if constexpr (kAligned) {
          CpAsync<16>(to, from, count > 0 ? 16 : 0);
        } else {
          StoreShared(reinterpret_cast<T*>(to), LoadSome<T, kPack>(from, count, Convert<T>(0.0f)));
        }
        from += every_;
      }
      source_ += advance_;
      (kAlong ? columns_ : rows_) -= kDepth;
    }

   private:
    const T* source_;
    int64_t every_, advance_;
    int rows_, columns_;  // that are left from the thread's first element on
    int target_;
  };

  // ---- To registers. ----

  // Where the lane reads of the warp's part, which begins with row, or column, `first` of A or B.
  __device__ static int LaneOfA(int first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    if constexpr (kAlong) return At(first + lane % 16, lane / 16);
    if constexpr (kIs16Bit<T>) return At(lane % 8 + lane / 16 * 8, first / kPack + lane / 8 % 2);
    return LaneOfNumbers(first);
  }
  __device__ static int LaneOfB(int first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    if constexpr (kAlong) return At(first + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    if constexpr (kIs16Bit<T>) return At(lane % 16, first / kPack + lane / 16);
    return LaneOfNumbers(first);
  }

  // Number m of the part's fragments of 16 rows of A, at the depth of mma number k.
  __device__ static void LoadA(const unsigned char* tile, int lane, int k, int m,
                               uint32_t (&a)[4]) {
    Load(tile, lane, k, m, 1, 2, a);
  }
  // Number n of its fragments of 16 columns of B, for two mma: one has b[0] and b[1].
  __device__ static void LoadB(const unsigned char* tile, int lane, int k, int n,
                               uint32_t (&b)[4]) {
    Load(tile, lane, k, n, 2, 1, b);
  }

 private:
  static constexpr int kOrders = 0x60;  // bits of addresses that a constant distance may change

  // Of a piece, in bytes. Rows a multiple of eight apart have the same order.
  __device__ static int At(int row, int piece) {
    const int order = kAlong && kPitch == 64  ? row / 2 % 4
                      : kAlong || kIs16Bit<T> ? row % 8
                                              : row % 4 * 2;
    return row * kPitch + 16 * (piece ^ order);
  }
  // ldmatrix transposes pairs of 16-bit numbers only: here lanes read single numbers.
  __device__ static int LaneOfNumbers(int first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, column = first + lane / 4;
    return At(lane % 4, column / kPack) + column % kPack * 4;
  }
  // The bits of `distance` are zero in the place that `lane` stands for, before it was ordered.
  __device__ static const unsigned char* Beyond(const unsigned char* tile, int lane, int distance) {
    return tile + (lane ^ (distance & kOrders)) + (distance & ~kOrders);
  }

  // Register i of a fragment of 32-bit numbers is 8 further out for each `outer`, and 4 deeper for
  // each `deeper`, that divides i into an odd number.
  __device__ static void Load(const unsigned char* tile, int lane, int k, int part, int outer,
                              int deeper, uint32_t (&fragment)[4]) {
    if constexpr (kAlong) {
      LoadMatrix<4>(fragment, Beyond(tile, lane, 32 * k) + 16 * part * kPitch);
    } else if constexpr (kIs16Bit<T>) {
      LoadMatrix<4, true>(fragment, Beyond(tile, lane, 32 * part) + 16 * k * kPitch);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        fragment[i] =
            *reinterpret_cast<const uint32_t*>(Beyond(tile, lane, 64 * part + i / outer % 2 * 32) +
                                               (8 * k + i / deeper % 2 * 4) * kPitch);
      }
    }
    if constexpr (!kIs16Bit<T>) {
#pragma unroll
      for (uint32_t& number : fragment) number = ToTf32(__uint_as_float(number));
    }
  }
};

// The sizes of a product of kRows (128, or 32 for few rows) x 128 elements.
template <class T, bool kAAlong, bool kBAlong, int kRows>
struct MmaShape {
  static constexpr int kColumns = 128, kWarpsDown = kRows == 128 ? 2 : 1;
  static constexpr int kWarpRows = kRows / kWarpsDown;
  static constexpr int kWarpColumns = kColumns / (kMmaThreads / kWarpSize / kWarpsDown);
  static constexpr int kM = kWarpRows / 16, kN = kWarpColumns / 8;
  static constexpr int kStepBytes = kRows == 128 ? 64 : 128;  // of k
  using A = MmaTile<T, kAAlong, kRows, kStepBytes>;
  using B = MmaTile<T, kBAlong, kColumns, kStepBytes>;
  static constexpr int kStages = 3, kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kBytes = kStages * kStageBytes;  // of shared memory
  using Sums = float[kM][kN][4];

  // The warp's first row and column.
  __device__ static int FirstRow() {
    return static_cast<int>(threadIdx.x) / kWarpSize % kWarpsDown * kWarpRows;
  }
  __device__ static int FirstColumn() {
    return static_cast<int>(threadIdx.x) / kWarpSize / kWarpsDown * kWarpColumns;
  }
};

template <class T>
__device__ inline void MmaOf(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  if constexpr (kIs16Bit<T>) {
    MmaM16N8K16<T>(c, a, b, c);
  } else {
    MmaM16N8K8(c, a, b, c);
  }
}

// c = A B over `depth`. All threads call it.
template <class Shape, bool kAligned, class T, bool kAAlong, bool kBAlong>
__device__ void MultiplyByMma(const MmaOperand<T, kAAlong>& a, const MmaOperand<T, kBAlong>& b,
                              int depth, typename Shape::Sums& c) {
  using A = typename Shape::A;
  using B = typename Shape::B;
  DYN_SHARED(unsigned char, shared);
#pragma unroll
  for (int m = 0; m < Shape::kM; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
    }
  }
  typename A::template Copier<kAligned> copy_a(a, depth);
  typename B::template Copier<kAligned> copy_b(b, depth);
  const int lane_a = A::LaneOfA(Shape::FirstRow()), lane_b = B::LaneOfB(Shape::FirstColumn());
  const int steps = (depth + A::kDepth - 1) / A::kDepth;
  int stage = 0;  // that is copied to next
  const auto copy = [&](int step) {
    if (step < steps) {
      copy_a.Copy(shared + stage * Shape::kStageBytes);
      copy_b.Copy(shared + stage * Shape::kStageBytes + A::kBytes);
      stage = stage + 1 < Shape::kStages ? stage + 1 : 0;
    }
    CpAsyncCommit();
  };
#pragma unroll
  for (int step = 0; step < Shape::kStages - 1; ++step) copy(step);
  int current = 0;
  for (int step = 0; step < steps; ++step) {
    CpAsyncWait<Shape::kStages - 2>();
    __syncthreads();  // this step's tiles are there, and the ones that are copied over were read
    copy(step + Shape::kStages - 1);
    const unsigned char* a_tile = shared + current * Shape::kStageBytes;
    const unsigned char* b_tile = a_tile + A::kBytes;
    current = current + 1 < Shape::kStages ? current + 1 : 0;
#pragma unroll
    for (int k = 0; k < A::kMmas; ++k) {
      uint32_t a_part[Shape::kM][4];
#pragma unroll
      for (int m = 0; m < Shape::kM; ++m) A::LoadA(a_tile, lane_a, k, m, a_part[m]);
#pragma unroll
      for (int n = 0; n < Shape::kN; n += 2) {
        uint32_t b_part[4];
        B::LoadB(b_tile, lane_b, k, n / 2, b_part);
#pragma unroll
        for (int m = 0; m < Shape::kM; ++m) {
          MmaOf<T>(c[m][n], a_part[m], b_part[0], b_part[1]);
          MmaOf<T>(c[m][n + 1], a_part[m], b_part[2], b_part[3]);
        }
      }
    }
  }
}

// Where a tile's elements go: `rows` x `columns` of them at most, from `data` on.
template <class D>
struct MmaTarget {
  D* data;
  int64_t stride, rows, columns;
  bool accumulate;
};

// Four neighbouring elements.
template <class D>
struct alignas(4 * sizeof(D)) MmaFour {
  D v[4];
};

// Whether a target can be accessed in fours.
template <class D>
bool AlignedMmaTarget(const D* data, int64_t stride) {
  return stride % 4 == 0 && reinterpret_cast<uintptr_t>(data) % alignof(MmaFour<D>) == 0;
}

// Writes the tile's elements, or adds them: in fours if kAligned.
template <class Shape, bool kAligned, class D>
__device__ void StoreMmaSums(const typename Shape::Sums& c, const MmaTarget<D>& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, t = lane % 4, odd = t % 2;
#pragma unroll
  for (int m = 0; m < Shape::kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = Shape::FirstRow() + 16 * m + 8 * h + lane / 4;
#pragma unroll
      for (int n = 0; n < Shape::kN; n += 2) {
        // Two neighbouring lanes have four neighbours of mma number n, and four of the next: the
        // even lane takes the former.
        float sum[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float left = c[m][n][2 * h + i], right = c[m][n + 1][2 * h + i];
          const float other = __shfl_xor_sync(kFullWarp, odd != 0 ? left : right, 1);
          sum[i] = odd != 0 ? other : left;
          sum[2 + i] = odd != 0 ? right : other;
        }
        const int column = Shape::FirstColumn() + 8 * (n + odd) + 2 * (t - odd);
        if (row >= to.rows || column >= to.columns) continue;
        D* at = to.data + row * to.stride + column;
        if constexpr (kAligned) {
          auto* out = reinterpret_cast<MmaFour<D>*>(at);
          MmaFour<D> four;
          if (to.accumulate) {
            four = *out;
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] += ToFloat(four.v[i]);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) four.v[i] = Convert<D>(sum[i]);
          *out = four;
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (column + i >= to.columns) break;
            at[i] = Convert<D>(to.accumulate ? ToFloat(at[i]) + sum[i] : sum[i]);
          }
        }
      }
    }
  }
}

}  // namespace lockstep::cuda
