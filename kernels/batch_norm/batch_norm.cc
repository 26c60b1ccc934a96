#include "kernels/batch_norm/batch_norm.h"

#include "core/slots.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

// [N, C, ...] as [N, C, S].
Tensor AsPlanes(const Tensor& x) {
  int64_t size = 1;
  for (int i = 2; i < x.ndim(); ++i) size *= x.dim(i);
  return x.Detach().View({x.dim(0), x.dim(1), size});
}

// What Gather returned, checked: a collective that mixes up layers must not pass unnoticed.
Tensor Gathered(BatchNormExchange& exchange, const Tensor& part) {
  const Tensor parts = exchange.Gather(part);
  LS_CHECK(parts.defined() && parts.ndim() == 3 && parts.dim(0) >= 1 &&
               parts.dim(1) == part.dim(0) && parts.dim(2) == part.dim(1) &&
               parts.dtype() == part.dtype() && parts.device() == part.device() &&
               parts.is_contiguous(),
           "batch_norm: the exchange must gather ", part.Describe(),
           " into a contiguous [ranks, ...], got ", parts.Describe());
  return parts;
}

void Write(const Tensor& sums, int64_t row, const GradTarget& target) {
  if (target.tensor.defined()) {
    target.Write(sums.Slice(0, row, row + 1).View(target.tensor.shape()));
  }
}

void Backward(const std::shared_ptr<BatchNormExchange>& exchange, const SavedTensors& saved,
              Gradients& grads) {
  const Tensor x = AsPlanes(saved[0]), dy = AsPlanes(grads[0]);
  const Tensor weight = saved[1], mean = saved[2], rstd = saved[3];
  const Tensor moments = saved[4];  // undefined in evaluation
  const Stream stream = CurrentStream(x.device());
  Tensor sums;
  if (grads.needs(1) || grads.needs(2) || moments.defined()) {
    sums = Tensor::Empty({2, x.dim(1)}, mean.dtype(), x.device());
    batch_norm_backward_sums(stream, x, dy, mean, rstd, sums);
  }
  Write(sums, 1, grads.OpenAnyDType(1));
  Write(sums, 0, grads.OpenAnyDType(2));
  GradTarget dx = grads.Open(0);
  if (!dx.tensor.defined()) return;
  dx.tensor = AsPlanes(dx.tensor);
  if (moments.defined() && exchange) {
    const Tensor all = Tensor::EmptyLike(sums);
    batch_norm_add(stream, Gathered(*exchange, sums), all);
    sums = all;
  }
  batch_norm_backward_input(
      stream, {x, dy, weight, mean, rstd, moments.defined() ? sums : Tensor(), moments, dx});
}

void CheckRunning(const char* name, const Tensor& t, const Tensor& x) {
  LS_CHECK(t.defined() && (t.dtype() == DType::kF32 || t.dtype() == AccumulationDType(x.dtype())) &&
               t.shape() == Shape{x.dim(1)} && t.device() == x.device() && t.is_contiguous(),
           "batch_norm: ", name, " must be a contiguous ", AccumulationDType(x.dtype()), "[",
           x.dim(1), "] on ", x.device(), " as x is ", x.Describe(), ", got ", t.Describe());
}

void Check(const Tensor& x, const Tensor& weight, const Tensor& bias, const BatchNormRunning& r,
           const BatchNormOptions& o) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 2,
           "batch_norm: x must be a floating [N, C, ...], got ", x.Describe());
  if (weight.defined()) CheckNormParameter("batch_norm", "weight", weight, x, x.dim(1));
  if (bias.defined()) CheckNormParameter("batch_norm", "bias", bias, x, x.dim(1));
  LS_CHECK(o.eps >= 0, "batch_norm: eps must not be negative, got ", o.eps);
  if (r.mean.defined() || r.var.defined() || !o.training) {
    CheckRunning("running mean", r.mean, x);
    CheckRunning("running var", r.var, x);
  }
  if (!o.training) return;
  LS_CHECK(!o.momentum || (*o.momentum >= 0 && *o.momentum <= 1),
           "batch_norm: momentum must be in [0, 1], got ", *o.momentum);
  LS_CHECK(o.momentum || !r.mean.defined() || r.batches.defined(),
           "batch_norm: without momentum the running mean is that of all batches, which needs "
           "their count: pass running.batches");
  LS_CHECK(!r.batches.defined() || (r.batches.dtype() == DType::kI64 && r.batches.numel() == 1 &&
                                    r.batches.device() == x.device()),
           "batch_norm: running.batches must be one i64 on ", x.device(), ", got ",
           r.batches.Describe());
  LS_CHECK(o.exchange || x.dim(1) == 0 || x.numel() / x.dim(1) > 1,
           "batch_norm: training needs more than one value per channel, got x of shape ", x.shape(),
           ": use a larger batch or evaluation mode");
}

struct Statistics {
  Tensor mean, rstd, moments;
};

Statistics OfBatch(const Tensor& planes, const BatchNormRunning& r, const BatchNormOptions& o,
                   Statistics s) {
  const Stream stream = CurrentStream(planes.device());
  s.moments = Tensor::Empty({3, planes.dim(1)}, s.mean.dtype(), planes.device());
  batch_norm_moments(stream, planes, s.moments);
  if (o.exchange) {
    const Tensor all = Tensor::EmptyLike(s.moments);
    batch_norm_join(stream, Gathered(*o.exchange, s.moments), all);
    s.moments = all;
  }
  for (const Tensor* written : {&r.mean, &r.var, &r.batches}) {
    if (written->defined()) written->storage().BumpVersion();
  }
  batch_norm_finish(stream, {s.moments, o.eps, o.momentum.value_or(-1), r.mean, r.var, r.batches,
                             s.mean, s.rstd});
  return s;
}

}  // namespace

Tensor BatchNorm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const BatchNormRunning& running, const BatchNormOptions& options) {
  Check(x, weight, bias, running, options);
  const Tensor input = x.Detach().Contiguous(), planes = AsPlanes(input);
  const auto contiguous = [](const Tensor& t) {
    return t.defined() ? t.Detach().Contiguous() : Tensor();
  };
  const Tensor w = contiguous(weight), b = contiguous(bias);
  const Stream stream = CurrentStream(x.device());
  Statistics s;
  s.mean = Tensor::Empty({x.dim(1)}, AccumulationDType(x.dtype()), x.device());
  s.rstd = Tensor::EmptyLike(s.mean);
  if (options.training) {
    s = OfBatch(planes, running, options, s);
  } else {
    batch_norm_from_running(stream, running.mean, running.var, options.eps, s.mean, s.rstd);
  }
  Tensor y = Tensor::EmptyLike(input);
  batch_norm_normalize(stream, planes, s.mean, s.rstd, w, b, AsPlanes(y));
  RecordOp("batch_norm", {&x, &weight, &bias}, {&y},
           {{input, "the input of batch_norm"},
            {w, "the weight of batch_norm"},
            {s.mean, "the mean of batch_norm"},
            {s.rstd, "the scale of batch_norm"},
            {s.moments, "the moments of batch_norm"}},
           [exchange = options.exchange](const SavedTensors& saved, Gradients& grads) {
             Backward(exchange, saved, grads);
           });
  return y;
}

}  // namespace lockstep::ops
