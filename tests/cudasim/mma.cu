// Tensor core kernels, with the wrappers of kernels/cuda.
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/mma.cuh"
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/launch_kernel.cuh"

namespace lockstep {
namespace {

using bf16 = __nv_bfloat16;
using cuda::CpAsync;
using cuda::CpAsyncCommit;
using cuda::CpAsyncWait;
using cuda::LoadMatrix;
using cuda::MmaM16N8K16;

__device__ uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// One warp, one tile of C.
__global__ void MmaKernel(const bf16* a, const bf16* bt, float* c, int K) {
  __shared__ bf16 a_tile[16 * 16];
  __shared__ bf16 b_tile[8 * 16];
  const int lane = static_cast<int>(threadIdx.x);
  float acc[4] = {0, 0, 0, 0};
  for (int k = 0; k < K; k += 16) {
    // A row is two pieces of 16 bytes.
    CpAsync<16>(&a_tile[lane / 2 * 16 + lane % 2 * 8], a + lane / 2 * K + k + lane % 2 * 8);
    if (lane < 16) {
      CpAsync<16>(&b_tile[lane / 2 * 16 + lane % 2 * 8], bt + lane / 2 * K + k + lane % 2 * 8);
    }
    CpAsyncCommit();
    CpAsyncWait<0>();
    __syncwarp();
    uint32_t a_fragment[4], b_fragment[2];
    // Matrices: rows 0-7 and 8-15 of the left half, then of the right.
    LoadMatrix<4>(a_fragment, &a_tile[lane % 16 * 16 + lane / 16 * 8]);
    LoadMatrix<2>(b_fragment, &b_tile[lane % 8 * 16 + lane / 8 % 2 * 8]);
    MmaM16N8K16<bf16>(acc, a_fragment, b_fragment, acc);
    __syncwarp();  // before the tiles are overwritten
  }
  const int group = lane / 4, t = lane % 4;
  c[group * 8 + 2 * t] = acc[0];
  c[group * 8 + 2 * t + 1] = acc[1];
  c[(group + 8) * 8 + 2 * t] = acc[2];
  c[(group + 8) * 8 + 2 * t + 1] = acc[3];
}

// The same of f32 numbers as TF32, read one by one.
__global__ void MmaTf32Kernel(const float* a, const float* bt, float* c, int K) {
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, t = lane % 4;
  float acc[4] = {0, 0, 0, 0};
  for (int k = 0; k < K; k += 8) {
    uint32_t a_fragment[4], b_fragment[2];
    for (int i = 0; i < 4; ++i) {
      a_fragment[i] = cuda::ToTf32(a[(group + i % 2 * 8) * K + k + t + i / 2 * 4]);
    }
    for (int i = 0; i < 2; ++i) b_fragment[i] = cuda::ToTf32(bt[group * K + k + t + i * 4]);
    cuda::MmaM16N8K8(acc, a_fragment, b_fragment, acc);
  }
  for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + 2 * t + i % 2] = acc[i];
}

constexpr int kD = 64;     // head width
constexpr int kKeys = 16;  // keys in a tile
constexpr int kPad = kD + 8;

// Copies rows [first, first + 16) of x[T][64]: 128 pieces by 32 lanes.
__device__ void CopyTile(bf16* tile, const bf16* x, int first) {
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * kD / 8; i += 32) {
    const int row = i / (kD / 8), column = i % (kD / 8) * 8;
    CpAsync<16>(&tile[row * kPad + column], x + static_cast<size_t>(first + row) * kD + column);
  }
}

// One warp per 16 queries; keys in tiles of 16, the next one is copied while this one is used.
__global__ void AttentionKernel(const bf16* q, const bf16* k, const bf16* v, float* o) {
  __shared__ bf16 q_tile[16 * kPad];
  __shared__ bf16 k_tiles[2 * kKeys * kPad];
  __shared__ bf16 v_tiles[2 * kKeys * kPad];
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, t = lane % 4;
  const int first_query = static_cast<int>(blockIdx.x) * 16;
  const int tiles = static_cast<int>(blockIdx.x) + 1;  // causal
  CopyTile(q_tile, q, first_query);
  CopyTile(k_tiles, k, 0);
  CopyTile(v_tiles, v, 0);
  CpAsyncCommit();

  float acc[kD / 8][4] = {};
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // rows group and group + 8
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % 2;
    if (tile + 1 < tiles) {
      CopyTile(k_tiles + (1 - stage) * kKeys * kPad, k, (tile + 1) * kKeys);
      CopyTile(v_tiles + (1 - stage) * kKeys * kPad, v, (tile + 1) * kKeys);
    }
    CpAsyncCommit();
    CpAsyncWait<1>();
    __syncwarp();
    const bf16* keys = k_tiles + stage * kKeys * kPad;
    const bf16* values = v_tiles + stage * kKeys * kPad;

    float scores[2][4] = {};  // keys 0-7 and 8-15 of the tile
    for (int d = 0; d < kD; d += 16) {
      uint32_t q_fragment[4], k_fragment[4];
      LoadMatrix<4>(q_fragment, &q_tile[lane % 16 * kPad + d + lane / 16 * 8]);
      LoadMatrix<4>(k_fragment, &keys[(lane % 8 + lane / 16 * 8) * kPad + d + lane / 8 % 2 * 8]);
      const uint32_t low[2] = {k_fragment[0], k_fragment[1]};
      const uint32_t high[2] = {k_fragment[2], k_fragment[3]};
      MmaM16N8K16<bf16>(scores[0], q_fragment, low, scores[0]);
      MmaM16N8K16<bf16>(scores[1], q_fragment, high, scores[1]);
    }
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kKeys + n * 8 + 2 * t + i % 2;
        const int query = first_query + group + 8 * (i / 2);
        scores[n][i] = key <= query ? scores[n][i] * 0.125f : -INFINITY;
      }
    }
    float scale[2];
    for (int r = 0; r < 2; ++r) {
      float best = fmaxf(fmaxf(scores[0][2 * r], scores[0][2 * r + 1]),
                         fmaxf(scores[1][2 * r], scores[1][2 * r + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      best = fmaxf(best, most[r]);
      scale[r] = expf(most[r] - best);
      most[r] = best;
      sum[r] *= scale[r];
    }
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = expf(scores[n][i] - most[i / 2]);
        sum[i / 2] += scores[n][i];
      }
    }
    for (int d = 0; d < kD / 8; ++d) {
      for (int i = 0; i < 4; ++i) acc[d][i] *= scale[i / 2];
    }
    // The fragment of the scores as C is that of the probabilities as A.
    const uint32_t p[4] = {
        PackPair(scores[0][0], scores[0][1]), PackPair(scores[0][2], scores[0][3]),
        PackPair(scores[1][0], scores[1][1]), PackPair(scores[1][2], scores[1][3])};
    for (int d = 0; d < kD / 8; d += 2) {
      uint32_t v_fragment[4];
      LoadMatrix<4, true>(v_fragment, &values[lane % 16 * kPad + d * 8 + lane / 16 * 8]);
      const uint32_t low[2] = {v_fragment[0], v_fragment[1]};
      const uint32_t high[2] = {v_fragment[2], v_fragment[3]};
      MmaM16N8K16<bf16>(acc[d], p, low, acc[d]);
      MmaM16N8K16<bf16>(acc[d + 1], p, high, acc[d + 1]);
    }
    __syncwarp();  // before the next round's copies overwrite this stage
  }
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    float* row = o + static_cast<size_t>(first_query + group + 8 * r) * kD;
    for (int d = 0; d < kD / 8; ++d) {
      row[d * 8 + 2 * t] = acc[d][2 * r] / sum[r];
      row[d * 8 + 2 * t + 1] = acc[d][2 * r + 1] / sum[r];
    }
  }
}

}  // namespace

cudaError_t RunMma(const uint16_t* a, const uint16_t* bt, float* c, int K) {
  return LaunchKernel(MmaKernel, 1, 32, 0, reinterpret_cast<const bf16*>(a),
                      reinterpret_cast<const bf16*>(bt), c, K);
}
cudaError_t RunMmaTf32(const float* a, const float* bt, float* c, int K) {
  return LaunchKernel(MmaTf32Kernel, 1, 32, 0, a, bt, c, K);
}
cudaError_t RunAttention(const uint16_t* q, const uint16_t* k, const uint16_t* v, float* o, int T) {
  return LaunchKernel(AttentionKernel, static_cast<unsigned>(T / 16), 32, 0,
                      reinterpret_cast<const bf16*>(q), reinterpret_cast<const bf16*>(k),
                      reinterpret_cast<const bf16*>(v), o);
}

}  // namespace lockstep
