#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/expert_router/expert_router.h"

// All kernels: one warp per token, eight per block; lane l has the experts l, l + 32, ... No shared
// memory, no atomics; sums over experts are in lanes first, then across the warp in a fixed order.
// A row of logits is at most a few KB, read once from memory and then from the cache.

namespace lockstep::cuda {
namespace {

constexpr int kTokens = 8;                    // of a block
constexpr int kMostExperts = 32 * kWarpSize;  // a lane's taken ones are bits of a word
constexpr int kNone = -1;

// The token of the calling warp; its lanes leave the kernel together.
__device__ inline int64_t TokenOfWarp() {
  return static_cast<int64_t>(blockIdx.x) * kTokens + static_cast<int>(threadIdx.x) / kWarpSize;
}
__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }

// The largest score, and of equal ones the first; index kNone: none yet.
struct Best {
  float score;
  int index;
  __device__ void Take(float other, int at) {
    if (at == kNone) return;
    if (index == kNone || other > score || (other == score && at < index)) {
      score = other;
      index = at;
    }
  }
};

__global__ void TopExpertsKernel(const float* logits, const float* bias, bool sigmoid, int64_t n,
                                 int e, int k, int* experts) {
  const int64_t token = TokenOfWarp();
  if (token >= n) return;
  const int lane = Lane();
  const float* row = logits + token * e;
  unsigned taken = 0;
  for (int slot = 0; slot < k; ++slot) {
    Best best{0, kNone};
    for (int i = lane, at = 0; i < e; i += kWarpSize, ++at) {
      if (taken >> at & 1) continue;
      const float score = (sigmoid ? Sigmoid(row[i]) : row[i]) + (bias != nullptr ? bias[i] : 0.0f);
      best.Take(score, i);
    }
    __syncwarp();
#pragma unroll
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      const float score = __shfl_xor_sync(kFullWarp, best.score, offset);
      const int index = __shfl_xor_sync(kFullWarp, best.index, offset);
      best.Take(score, index);
    }
    // With NaNs lanes may disagree; lane 0 decides.
    const int index = __shfl_sync(kFullWarp, best.index, 0);
    if (index % kWarpSize == lane) taken |= 1u << (index / kWarpSize);
    if (lane == 0) experts[token * k + slot] = index;
  }
}

// What makes a token's gates: gate = Numerator(logit) * factor.
struct TokenGates {
  bool sigmoid, normalise;
  float scale;
  float max = 0, factor = 1;

  __device__ float Numerator(float logit) const {
    return sigmoid ? Sigmoid(logit) : expf(logit - max);
  }
  // All lanes call it.
  __device__ void Compute(const float* row, int e, const int* chosen, int k) {
    const int lane = Lane();
    if (!sigmoid) {
      max = -INFINITY;
      for (int i = lane; i < e; i += kWarpSize) max = MaxOp()(max, row[i]);
      __syncwarp();
      max = WarpMax(max);
    }
    if (sigmoid && !normalise) {
      factor = scale;
      return;
    }
    float sum = 0;
    if (normalise) {
      for (int j = lane; j < k; j += kWarpSize) sum += Numerator(row[chosen[j]]);
    } else {
      for (int i = lane; i < e; i += kWarpSize) sum += Numerator(row[i]);
    }
    __syncwarp();
    factor = scale / fmaxf(WarpSum(sum), static_cast<float>(kLeastGateSum));
  }
};

__global__ void ExpertGatesForwardKernel(TokenGates of, const float* logits, const int* experts,
                                         int64_t n, int e, int k, float* gates) {
  const int64_t token = TokenOfWarp();
  if (token >= n) return;
  const float* row = logits + token * e;
  const int* chosen = experts + token * k;
  of.Compute(row, e, chosen, k);
  for (int j = Lane(); j < k; j += kWarpSize) {
    gates[token * k + j] = of.Numerator(row[chosen[j]]) * of.factor;
  }
}

template <bool accumulate>
__global__ void ExpertGatesBackwardKernel(TokenGates of, const float* logits, const int* experts,
                                          const float* dgates, int64_t n, int e, int k,
                                          float* dlogits) {
  const int64_t token = TokenOfWarp();
  if (token >= n) return;
  const float *row = logits + token * e, *dgate = dgates + token * k;
  const int* chosen = experts + token * k;
  of.Compute(row, e, chosen, k);
  float dot = 0;
  for (int j = Lane(); j < k; j += kWarpSize) {
    dot += dgate[j] * (of.Numerator(row[chosen[j]]) * of.factor);
  }
  __syncwarp();
  dot = WarpSum(dot) / of.scale;
  for (int i = Lane(); i < e; i += kWarpSize) {
    const float numerator = of.Numerator(row[i]), gate = numerator * of.factor;
    // What the denominator takes back, of all experts or of the chosen ones.
    float d = of.sigmoid || of.normalise ? 0.0f : -gate * dot;
    for (int j = 0; j < k; ++j) {
      if (chosen[j] != i) continue;
      float through = dgate[j] * gate;
      if (of.normalise) through -= gate * dot;
      d += of.sigmoid ? through * (1.0f - numerator) : through;
    }
    float& out = dlogits[token * e + i];
    out = accumulate ? out + d : d;
  }
}

TokenGates GatesOf(const RouterOptions& options) {
  return {options.score == RouterScore::kSigmoid, options.normalise,
          static_cast<float>(options.scale)};
}

void TopExpertsCuda(Stream stream, const TopExpertsArgs& args) {
  const int64_t n = args.logits.dim(0), e = args.logits.dim(1);
  LS_CHECK(e <= kMostExperts, "top_experts: CUDA can choose among up to ", kMostExperts,
           " experts, not ", e);
  Launch({"top_experts", args.logits}, TopExpertsKernel, Blocks(n, kTokens), kTokens * kWarpSize, 0,
         stream, Data<float>(args.logits), DataOrNull<float>(args.bias),
         args.score == RouterScore::kSigmoid, n, static_cast<int>(e),
         static_cast<int>(args.experts.dim(1)), Data<int>(args.experts));
}

void ExpertGatesForwardCuda(Stream stream, const ExpertGatesArgs& args) {
  const int64_t n = args.logits.dim(0);
  Launch({"expert_gates_forward", args.logits}, ExpertGatesForwardKernel, Blocks(n, kTokens),
         kTokens * kWarpSize, 0, stream, GatesOf(args.options), Data<float>(args.logits),
         Data<int>(args.experts), n, static_cast<int>(args.logits.dim(1)),
         static_cast<int>(args.experts.dim(1)), Data<float>(args.gates));
}

void ExpertGatesBackwardCuda(Stream stream, const ExpertGatesBackwardArgs& args) {
  const int64_t n = args.logits.dim(0);
  DispatchBool(args.accumulate, [&](auto flag) {
    Launch({"expert_gates_backward", args.logits}, ExpertGatesBackwardKernel<decltype(flag)::value>,
           Blocks(n, kTokens), kTokens * kWarpSize, 0, stream, GatesOf(args.options),
           Data<float>(args.logits), Data<int>(args.experts), Data<float>(args.dgates), n,
           static_cast<int>(args.logits.dim(1)), static_cast<int>(args.experts.dim(1)),
           Data<float>(args.dlogits));
  });
}

LS_REGISTER(top_experts, DeviceType::kCuda, TopExpertsCuda);
LS_REGISTER(expert_gates_forward, DeviceType::kCuda, ExpertGatesForwardCuda);
LS_REGISTER(expert_gates_backward, DeviceType::kCuda, ExpertGatesBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
