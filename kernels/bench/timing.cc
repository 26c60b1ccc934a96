#include "kernels/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "core/autograd/grad_mode.h"
#include "core/cuda/device.h"
#include "core/philox.h"
#include "core/stream.h"
#include "kernels/linear/linear.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Several times the last level of cache of any device. A simulated one has none.
int64_t FlushBytes(Device device) {
  if (device.is_cpu()) return 64 << 20;
  return cuda::Simulated() ? 1 << 16 : 512 << 20;
}

}  // namespace

Tensor RandomTensor(const Shape& shape, DType dtype, Device device) {
  NoGrad no_grad;
  // Drawn on the host, so no more than this many; what is larger repeats them.
  constexpr int64_t kDrawn = 1 << 20;
  const int64_t n = shape.numel();
  std::vector<float> values(static_cast<size_t>(std::min(n, kDrawn)));
  const Philox random(n);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * ToUniform(random.At(0, i)) - 1;
  const Tensor all = Tensor::Empty({n}, dtype, device);
  int64_t done = static_cast<int64_t>(values.size());
  all.Slice(0, 0, done).CopyFrom(Tensor::FromVector(values, {done}).To(dtype).To(device));
  while (done < n) {
    const int64_t more = std::min(done, n - done);
    all.Slice(0, done, done + more).CopyFrom(all.Slice(0, 0, more));
    done += more;
  }
  return all.View(shape);
}

Bench::Bench(Device device, double seconds)
    : device_(device),
      seconds_(seconds),
      timer_(device.is_cuda() ? std::make_unique<cuda::Timer>(CurrentStream(device)) : nullptr),
      flush_(Tensor::Empty({FlushBytes(device)}, DType::kU8, device)) {}

double Bench::Run(const std::function<void()>& prepare, const std::function<void()>& body) {
  prepare();
  // Evicts what an op left in the caches, as the rest of a training step would. A GPU is busy with
  // it while the host submits the body, so that no gap is timed.
  flush_.Fill(1);
  if (timer_) {
    timer_->Start();
    body();
    return timer_->Stop();
  }
  const auto start = Clock::now();
  body();
  return Since(start);
}

Timing Bench::Measure(const std::function<void()>& prepare, const std::function<void()>& body) {
  constexpr int kMinSamples = 7, kMaxSamples = 1000;
  const auto begin = Clock::now();
  for (double warm = 0; warm < seconds_ / 4 && Since(begin) < 5 * seconds_;) {
    warm += Run(prepare, body);
  }
  std::vector<double> times;
  double total = 0;
  const auto measured = Clock::now();
  while (static_cast<int>(times.size()) < kMinSamples ||
         (total < seconds_ && times.size() < kMaxSamples && Since(measured) < 20 * seconds_)) {
    times.push_back(Run(prepare, body));
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  const auto quantile = [&](double q) {
    return times[static_cast<size_t>(q * static_cast<double>(times.size() - 1) + 0.5)];
  };
  return {static_cast<int>(times.size()), quantile(0.5), quantile(0.2), quantile(0.8)};
}

Peaks::Peaks(Bench& bench) : bench_(bench) {
  const bool gpu = bench.device().is_cuda() && !cuda::Simulated();
  const double bytes = gpu ? 1 << 30 : 128 << 20;
  bytes_per_second_ = bytes / CopySeconds(bytes);
}

double Peaks::CopySeconds(double bytes) {
  const int64_t half = SizeOf(DType::kF32) * 2;
  const int64_t n = std::max<int64_t>(1, std::llround(bytes / static_cast<double>(half)));
  auto [it, fresh] = copies_.try_emplace(n, 0.0);
  if (fresh) {
    NoGrad no_grad;
    const Tensor from = RandomTensor({n}, DType::kF32, bench_.device());
    const Tensor to = from.Clone();  // the OS allots pages at the first write
    it->second = bench_.Measure([] {}, [&] { to.CopyFrom(from); }).median;
  }
  return it->second;
}

void Peaks::MeasureGemm(DType dtype) {
  NoGrad no_grad;
  const int64_t size = bench_.device().is_cuda() && !cuda::Simulated() ? 8192 : 1024;
  const Tensor a = RandomTensor({size, size}, dtype, bench_.device());
  const Tensor b = a.Transpose(0, 1).Contiguous();
  const Timing t = bench_.Measure([] {}, [&] { ops::Linear(a, b); });
  flops_[dtype] = 2 * std::pow(static_cast<double>(size), 3) / t.median;
}

}  // namespace lockstep
