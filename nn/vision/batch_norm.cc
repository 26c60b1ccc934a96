#include "nn/vision/batch_norm.h"

#include "core/step_state.h"
#include "nn/init.h"

namespace lockstep::nn {

BatchNorm::BatchNorm(int64_t channels, const BatchNormOptions& options)
    : channels_(channels), options_(options) {
  LS_CHECK(channels > 0, "BatchNorm needs a positive number of channels, got ", channels);
  LS_CHECK(options.eps > 0, "BatchNorm needs eps > 0, got ", options.eps);
  LS_CHECK(!options.momentum || (*options.momentum >= 0 && *options.momentum <= 1),
           "BatchNorm: momentum must be in [0, 1], got ", *options.momentum);
  if (options.affine) {
    weight_ = AddParameter("weight", {channels}, Constant(1), /*decay=*/false);
    bias_ = AddParameter("bias", {channels}, Constant(0), /*decay=*/false);
  }
  if (!options.track_running_stats) return;
  running_mean_ = &AddBuffer("running_mean", Tensor::Zeros({channels}, DType::kF32));
  running_var_ = &AddBuffer("running_var", Tensor::Full({channels}, 1, DType::kF32));
  batches_ = &AddBuffer("num_batches_tracked", Tensor::Zeros({}, DType::kI64));
}

Tensor BatchNorm::Forward(const Tensor& x) {
  CheckInput(x);
  const bool in_training = CurrentStepState() != nullptr;
  BatchNormRunning running;
  // A forward that is only recomputed is no second batch.
  if (options_.track_running_stats && !(in_training && Recomputing())) {
    running = {*running_mean_, *running_var_, *batches_};
  }
  const Tensor y = ops::BatchNorm(x, weight_ ? weight_->value() : Tensor(),
                                  bias_ ? bias_->value() : Tensor(), running,
                                  {.training = in_training || !options_.track_running_stats,
                                   .eps = options_.eps,
                                   .momentum = options_.momentum,
                                   .exchange = in_training ? exchange_ : nullptr});
  return in_training ? y : Evaluated(y);
}

void BatchNorm1d::CheckInput(const Tensor& x) const {
  LS_CHECK(x.defined() && (x.ndim() == 2 || x.ndim() == 3) && x.dim(1) == channels(),
           "BatchNorm1d of ", channels(), " channels needs [N, ", channels(), "] or [N, ",
           channels(), ", L], got ", x.Describe());
}

void BatchNorm2d::CheckInput(const Tensor& x) const {
  LS_CHECK(x.defined() && x.ndim() == 4 && x.dim(1) == channels(), "BatchNorm2d of ", channels(),
           " channels needs [N, ", channels(), ", H, W], got ", x.Describe());
}

}  // namespace lockstep::nn
