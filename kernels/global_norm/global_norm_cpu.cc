#include <cmath>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/reduce.h"
#include "kernels/global_norm/global_norm.h"

namespace lockstep::cpu {
namespace {

struct Chunk {
  const Tensor* grad;
  int64_t begin;
};

void SquareSumsCpu(Stream, std::span<const Tensor> grads, const Tensor& sums) {
  std::vector<Chunk> chunks;
  chunks.reserve(static_cast<size_t>(sums.numel()));
  for (const Tensor& grad : grads) {
    for (int64_t at = 0; at < grad.numel(); at += kGradNormChunk) chunks.push_back({&grad, at});
  }
  double* out = sums.data<double>();
  ParallelForEach(sums.numel(), 1, [&](int64_t i) {
    const Tensor& grad = *chunks[i].grad;
    const int64_t n = std::min(kGradNormChunk, grad.numel() - chunks[i].begin);
    DispatchFloat("grad_norm", grad.dtype(), [&]<class T>(TypeTag<T>) {
      const T* g = grad.data<T>() + chunks[i].begin;
      out[i] = SumOver<double>(n, [=](int64_t k) {
        const double x = Convert<double>(g[k]);
        return x * x;
      });
    });
  });
}

void FinishCpu(Stream, const Tensor& sums, double max_norm, StepValues* values) {
  const double* sum = sums.data<double>();
  double total = 0;
  for (int64_t i = 0; i < sums.numel(); ++i) total += sum[i];
  const double norm = std::sqrt(total) / values->loss_scale.scale;
  values->grad_norm = static_cast<float>(norm);
  values->clip_factor = 1;
  if (!std::isfinite(values->grad_norm)) {
    values->found_inf = kNotFinite;
    return;
  }
  if (values->grad_norm > values->norm_limit) values->found_inf = kSpike;
  if (max_norm > 0) {
    values->clip_factor = static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6)));
  }
}

LS_REGISTER(grad_norm_square_sums, DeviceType::kCpu, SquareSumsCpu);
LS_REGISTER(grad_norm_finish, DeviceType::kCpu, FinishCpu);

}  // namespace
}  // namespace lockstep::cpu
