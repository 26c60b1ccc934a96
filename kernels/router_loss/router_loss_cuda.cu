#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/router_loss/router_loss.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

struct Coefficients {
  bool sigmoid;
  float balance, z;
};

// A token's scores as a warp sees them: what each lane needs to make those of its experts.
struct Scores {
  bool sigmoid;
  float log_sum = 0, inverse_sum = 1, max = 0;

  __device__ float Score(float logit) const { return sigmoid ? Sigmoid(logit) : expf(logit - max); }
  __device__ float Share(float logit) const { return Score(logit) * inverse_sum; }

  // All lanes of the warp call it.
  __device__ Scores(bool sigmoid, const float* logits, int e) : sigmoid(sigmoid) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    max = -INFINITY;
    for (int i = lane; i < e; i += kWarpSize) max = MaxOp()(max, logits[i]);
    __syncwarp();
    max = WarpMax(max);
    float sum = 0, scores = 0;
    for (int i = lane; i < e; i += kWarpSize) {
      sum += expf(logits[i] - max);
      scores += Score(logits[i]);
    }
    __syncwarp();
    log_sum = max + logf(WarpSum(sum));
    inverse_sum = 1.0f / fmaxf(WarpSum(scores), static_cast<float>(kLeastGateSum));
  }

  // sum_e share_e weights_e.
  __device__ float WeightedBy(const float* weights, const float* logits, int e) const {
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x) % kWarpSize; i < e; i += kWarpSize) {
      sum += Share(logits[i]) * weights[i];
    }
    __syncwarp();
    return WarpSum(sum);
  }
};

// weights [B, E]: each warp counts the choices of an expert after the other.
// Grid: one block per sequence. No shared memory. Counts are integers.
__global__ void __launch_bounds__(kThreads)
    RouterLoadKernel(const int* experts, int64_t t, int e, int k, float balance, float* weights) {
  const int* chosen = experts + blockIdx.x * t * k;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int expert = WarpOfBlock(); expert < e; expert += kWarps) {
    int count = 0;
    for (int64_t i = lane; i < t * k; i += kWarpSize) count += chosen[i] == expert ? 1 : 0;
    __syncwarp();
    count = WarpSum(count);
    if (lane > 0) continue;
    weights[static_cast<int64_t>(blockIdx.x) * e + expert] =
        static_cast<float>(balance * (static_cast<double>(e) * static_cast<double>(count)) /
                           static_cast<double>(t * k > 0 ? t * k : 1));
  }
}

// losses [B]: of each sequence.
// Grid: one block per sequence, whose warp w has the tokens w, w + 8, ..., one lane per expert.
// Shared memory: a float per warp. Deterministic: a warp adds its tokens in order, then the warps'
// sums are added in a fixed order.
__global__ void __launch_bounds__(kThreads)
    RouterLossKernel(Coefficients c, const float* logits, const float* weights, int64_t t, int e,
                     float* losses) {
  __shared__ float scratch[kWarps];
  const int warp = WarpOfBlock(), lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float sum = 0;
  for (int64_t token = warp; token < t; token += kWarps) {
    const float* row = logits + (blockIdx.x * t + token) * e;
    const Scores scores(c.sigmoid, row, e);
    const float balance = scores.WeightedBy(weights + static_cast<int64_t>(blockIdx.x) * e, row, e);
    if (lane == 0) sum += balance + c.z * scores.log_sum * scores.log_sum;
  }
  sum = BlockSum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) losses[blockIdx.x] = sum;
}

// The sum of n numbers. Grid: one block. Shared memory: a float per warp. Deterministic.
__global__ void __launch_bounds__(kThreads) SumKernel(const float* from, int64_t n, float* to) {
  __shared__ float scratch[kWarps];
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += from[i];
  sum = BlockSum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) *to = sum;
}

// Grid: one warp per token, eight per block; lane l has the experts l, l + 32, ... No shared
// memory.
template <bool accumulate>
__global__ void __launch_bounds__(kThreads)
    RouterLossBackwardKernel(Coefficients c, const float* logits, const float* weights,
                             const float* upstream, int64_t tokens, int64_t t, int e,
                             float* dlogits) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfBlock();
  if (token >= tokens) return;
  const float *row = logits + token * e, *weight = weights + token / t * e;
  const Scores scores(c.sigmoid, row, e);
  const float mean = scores.WeightedBy(weight, row, e);
  const float z = 2.0f * c.z * scores.log_sum;
  for (int i = static_cast<int>(threadIdx.x) % kWarpSize; i < e; i += kWarpSize) {
    const float share = scores.Share(row[i]), balance = share * (weight[i] - mean);
    const float d =
        c.sigmoid ? balance * (1.0f - scores.Score(row[i])) + z * expf(row[i] - scores.log_sum)
                  : balance + z * share;
    float& out = dlogits[token * e + i];
    out = accumulate ? out + *upstream * d : *upstream * d;
  }
}

Coefficients CoefficientsOf(const RouterLossOptions& options) {
  return {options.score == RouterScore::kSigmoid, static_cast<float>(options.balance),
          static_cast<float>(options.z)};
}

void RouterLossForwardCuda(Stream stream, const RouterLossArgs& args) {
  const int64_t b = args.logits.dim(0), t = args.logits.dim(1);
  const int e = static_cast<int>(args.logits.dim(2)), k = static_cast<int>(args.experts.dim(2));
  const Coefficients c = CoefficientsOf(args.options);
  const Tensor losses = Tensor::Empty({b}, DType::kF32, args.logits.device());
  Launch({"router_loss_forward", args.experts}, RouterLoadKernel, Blocks(b, 1), kThreads, 0, stream,
         Data<int>(args.experts), t, e, k, c.balance, Data<float>(args.weights));
  Launch({"router_loss_forward", args.logits}, RouterLossKernel, Blocks(b, 1), kThreads, 0, stream,
         c, Data<float>(args.logits), Data<float>(args.weights), t, e, Data<float>(losses));
  Launch({"router_loss_forward", losses}, SumKernel, 1, kThreads, 0, stream, Data<float>(losses), b,
         Data<float>(args.loss));
}

void RouterLossBackwardCuda(Stream stream, const RouterLossBackwardArgs& args) {
  const int64_t t = args.logits.dim(1), tokens = args.logits.dim(0) * t;
  DispatchBool(args.accumulate, [&](auto flag) {
    Launch({"router_loss_backward", args.logits}, RouterLossBackwardKernel<decltype(flag)::value>,
           Blocks(tokens, kWarps), kThreads, 0, stream, CoefficientsOf(args.options),
           Data<float>(args.logits), Data<float>(args.weights), Data<float>(args.dloss), tokens, t,
           static_cast<int>(args.logits.dim(2)), Data<float>(args.dlogits));
  });
}

LS_REGISTER(router_loss_forward, DeviceType::kCuda, RouterLossForwardCuda);
LS_REGISTER(router_loss_backward, DeviceType::kCuda, RouterLossBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
