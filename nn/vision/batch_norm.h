// Batch normalisation, Ioffe and Szegedy (2015).
#pragma once

#include <memory>
#include <optional>

#include "core/module.h"
#include "kernels/batch_norm/batch_norm.h"

namespace lockstep::nn {

struct BatchNormOptions {
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  // without: the mean over all batches
  bool affine = true;                    // weight and bias
  bool track_running_stats = true;       // without: evaluation too uses the batch's statistics
};

// y = (x - mean) / sqrt(var + eps) * weight + bias per channel (kernels/batch_norm/batch_norm.h).
// In a TrainingScope it uses the statistics of the batch, and updates the running ones with them;
// otherwise it uses the running ones. With gradient accumulation each micro-batch counts as a
// batch, once, even if nn::Recompute computes it twice. Parameters: weight [channels] = 1, bias
// [channels] = 0; neither decays. Buffers, named as PyTorch's: running_mean = 0 and running_var =
// 1, f32 (f64 in an f64 model) [channels]; num_batches_tracked = 0, i64.
class BatchNorm : public Layer {
 public:
  explicit BatchNorm(int64_t channels, const BatchNormOptions& options = {});

  const std::shared_ptr<Parameter>& weight() const { return weight_; }  // null if not affine
  const std::shared_ptr<Parameter>& bias() const { return bias_; }

  // From now on the statistics are those of all processes that take part in the exchange
  // (SyncBatchNorm); null: of this one. All of them must then run the same layers in the same
  // order.
  void SetExchange(std::shared_ptr<BatchNormExchange> exchange) { exchange_ = std::move(exchange); }

 protected:
  Tensor Forward(const Tensor& x) override;
  // Throws ArgumentError unless the layer takes such an x.
  virtual void CheckInput(const Tensor& x) const = 0;
  int64_t channels() const { return channels_; }

 private:
  int64_t channels_;
  BatchNormOptions options_;
  std::shared_ptr<BatchNormExchange> exchange_;
  std::shared_ptr<Parameter> weight_, bias_;
  Tensor* running_mean_ = nullptr;  // the module's buffers; null if not tracked
  Tensor* running_var_ = nullptr;
  Tensor* batches_ = nullptr;
};

// torch.nn.BatchNorm1d: x [N, channels] or [N, channels, L].
class BatchNorm1d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  void CheckInput(const Tensor& x) const override;
};

// torch.nn.BatchNorm2d: x [N, channels, H, W].
class BatchNorm2d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  void CheckInput(const Tensor& x) const override;
};

}  // namespace lockstep::nn
