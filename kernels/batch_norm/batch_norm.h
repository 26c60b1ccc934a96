// Batch normalisation, Ioffe and Szegedy, "Batch normalization: accelerating deep network training
// by reducing internal covariate shift" (2015).
#pragma once

#include <memory>
#include <optional>

#include "core/autograd/node.h"
#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

// How several processes share the statistics of a batch (SyncBatchNorm). Forward and backward each
// reduce their own part of the batch to a small tensor, hand it to Gather, and continue with those
// of all. The parts are joined in a tree over their order, as samples are within a part; so where
// every process has the same number of samples, a power of two, statistics and gradients of x have
// the bits that one process with the whole batch computes.
class BatchNormExchange {
 public:
  virtual ~BatchNormExchange() = default;
  // A collective: `part` of all processes, stacked in the order of their ranks, [ranks, ...], in
  // memory that the caller may overwrite. Called once by each forward in training, and once by the
  // backward of x. Where all processes together have fewer than two values per channel, the running
  // statistics do not change.
  virtual Tensor Gather(const Tensor& part) = 0;
};

struct BatchNormOptions {
  bool training = false;  // statistics of this batch, else the running ones
  double eps = 1e-5;
  // running = (1 - momentum) running + momentum batch; without momentum: the mean over all batches
  // so far.
  std::optional<double> momentum = 0.1;
  std::shared_ptr<BatchNormExchange> exchange;  // in training; null: this process only
};

// State that training updates in place; each may be undefined.
struct BatchNormRunning {
  Tensor mean, var;  // [C], f32 (or f64 for f64 x); together
  Tensor batches;    // i64 scalar: training batches seen; needed where there is no momentum
};

namespace ops {

// torch.nn.functional.batch_norm, for each channel c of x [N, C, ...], floating:
//   y = (x - mean_c) / sqrt(var_c + eps) * weight_c + bias_c
// In training mean and var are those of the batch over N and all dimensions after C, var biased;
// running.mean and running.var are updated with them, var unbiased, and running.batches is
// incremented. Otherwise they are running.mean and running.var, which must be defined. weight,
// bias: [C] of f32 or x's dtype, or undefined for 1 and 0. Computes in f32 or wider: mean and
// squared deviations of each sample's plane in two passes, joined pairwise (Chan, Golub and
// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979).
// Saves x, weight, mean and 1 / sqrt(var + eps). Differentiable in both modes; gradients are sums
// of the same shape as the statistics, those of weight and bias over this process only. Throws
// ArgumentError, also for a training batch with a single value per channel.
Tensor BatchNorm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const BatchNormRunning& running, const BatchNormOptions& options);

}  // namespace ops

// The low-level operations, by which other modules may reduce between the steps. x: [N, C, S].
// "wide" is f64 for f64 x, else f32.

// moments, wide [3, C]: the number of values, their mean, and the sum of squared deviations from
// it.
inline constinit Slot<void(const Tensor& x, const Tensor& moments)> batch_norm_moments{
    "batch_norm_moments"};
// parts [R, 3, C] to the moments [3, C] of all; the parts are overwritten. Samples are joined in
// the same way.
inline constinit Slot<void(const Tensor& parts, const Tensor& moments)> batch_norm_join{
    "batch_norm_join"};
// From moments: mean and rstd = 1 / sqrt(biased variance + eps), wide [C], and the update of the
// running state. momentum < 0: the mean over all batches.
struct BatchNormFinishArgs {
  Tensor moments;
  double eps = 0, momentum = 0;
  Tensor running_mean, running_var, batches;  // read and written; may be undefined
  Tensor mean, rstd;                          // written
};
inline constinit Slot<void(const BatchNormFinishArgs&)> batch_norm_finish{"batch_norm_finish"};
// mean and rstd, wide [C], from the running statistics.
inline constinit Slot<void(const Tensor& running_mean, const Tensor& running_var, double eps,
                           const Tensor& mean, const Tensor& rstd)>
    batch_norm_from_running{"batch_norm_from_running"};
// y = (x - mean) rstd weight + bias; weight and bias may be undefined.
inline constinit Slot<void(const Tensor& x, const Tensor& mean, const Tensor& rstd,
                           const Tensor& weight, const Tensor& bias, const Tensor& y)>
    batch_norm_normalize{"batch_norm_normalize"};

// sums, wide [2, C]: of dy, and of dy (x - mean) rstd. These are the gradients of bias and weight.
inline constinit Slot<void(const Tensor& x, const Tensor& dy, const Tensor& mean,
                           const Tensor& rstd, const Tensor& sums)>
    batch_norm_backward_sums{"batch_norm_backward_sums"};
// parts [R, 2, C] to their sums [2, C]; the parts are overwritten.
inline constinit Slot<void(const Tensor& parts, const Tensor& sums)> batch_norm_add{
    "batch_norm_add"};
// dx = weight rstd (dy - sums[0] / n - xhat sums[1] / n), or dx += that, with n = moments[0]; where
// sums and moments are undefined, as in evaluation, dx = weight rstd dy.
struct BatchNormBackwardArgs {
  Tensor x, dy, weight, mean, rstd;  // weight may be undefined
  Tensor sums, moments;              // of all processes, or undefined
  GradTarget dx;
};
inline constinit Slot<void(const BatchNormBackwardArgs&)> batch_norm_backward_input{
    "batch_norm_backward_input"};

}  // namespace lockstep
